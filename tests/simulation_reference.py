"""The serve loop played event by event, one microsecond event after the other: slow, obvious, and by another hand.

Nothing is shared with the simulator but policy, cost model, admission and the choice of a depth: every arrival, every
passed deadline and every end of a batch is an event, and after each the loop looks whether it can start or stage
anything.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field

from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.depth_choice import DepthChoice
from backends.scheduling.policies import Policy
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import Capacity
from backends.scheduling.wait_forecast import FRESH_US, WaitForecast
from backends.scheduling.waiting_room import WaitingRoom
from backends.stack_key import StackKey

SIMULATED = StackKey("simulated")
STUDENTS = StackKey("simulated", "students")


@dataclass(eq=False)
class Request:
    index: int
    arrived_us: int
    hplm_key: int
    num_tokens: int
    deadline_us: int | None
    root: StackKey = SIMULATED
    fate: str | None = None
    answered_us: int | None = None
    depth: float = 1.0
    least_depth: float = 1.0
    exit_depth: float = 1.0
    is_sure: bool = False
    may_settle: bool = True
    has_settled: bool = False
    level: str = "full"
    most_depth: float = 1.0
    kept: float = 1.0

    def settle(self) -> bool:
        if self.has_settled or self.exit_depth == 1.0 or not self.may_settle:
            return False
        self.has_settled, self.depth = True, self.exit_depth
        return True

    def unsettle(self, depth: float) -> None:
        self.has_settled, self.depth = False, depth

    @property
    def tenant(self) -> str:
        return f"tenant{self.hplm_key}"

    def is_late(self, now_us: int) -> bool:
        return self.deadline_us is not None and now_us >= self.deadline_us


@dataclass
class ReferenceLoop:
    policy: Policy
    cost_model: CostModel
    capacity: Capacity
    max_waiting: int
    admission: Admission[Request] | None = None
    forecast: WaitForecast | None = None
    forecast_us: int | None = None
    waiting: list[Request] = field(default_factory=list)
    staged: list[Request] | None = None
    running: list[Request] | None = None
    ends_us: int | None = None
    exits_us: int | None = None
    students: DepthChoice[Request] | None = None
    student_depths: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)
    batches: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    batches_taken: int = 0

    coming: list[Request] = field(default_factory=list)
    events: list[int] = field(default_factory=list)

    def play(self, requests: list[Request]) -> None:
        for request in sorted(requests, key=lambda request: (request.arrived_us, request.index)):
            self.add(request)
        while self.events:
            self.step(heapq.heappop(self.events))

    def add(self, request: Request) -> None:
        """Let a request come at its time; those of one time come as they were added."""
        heapq.heappush(self.events, request.arrived_us)
        if request.deadline_us is not None:
            heapq.heappush(self.events, request.deadline_us)
        insort(self.coming, request, key=lambda one: one.arrived_us)

    def step(self, now_us: int) -> None:
        self._expire(now_us)
        while self.coming and self.coming[0].arrived_us <= now_us:
            self._arrive(self.coming.pop(0), now_us)
            self._expire(now_us)
        self._answer_early(now_us)
        if self.ends_us is not None and self.ends_us <= now_us:
            self._finish(now_us)
        while self._start(now_us) or self._stage(now_us):
            pass

    def held(self) -> list[Request]:
        """All that it has been sent and is not done with."""
        running = [request for request in self.running or () if request.fate is None]
        return [*self.coming, *self.waiting, *(self.staged or ()), *running]

    def _arrive(self, request: Request, now_us: int) -> None:
        if self.admission is None:
            if len(self.waiting) >= self.max_waiting:
                request.fate = "queue_full"
            else:
                self.waiting.append(request)
            return
        told_us = self.forecast_us
        if told_us is not None and self.forecast is not None and request.deadline_us is not None:
            left_us = request.deadline_us - told_us
            finish_us = self.forecast.finish_in_us(request.num_tokens, (request.tenant,), left_us)
            if now_us - told_us <= FRESH_US and finish_us > left_us:
                request.fate = Rejection.PREDICTED_LATE
        if request.fate is None:
            rejected = self.admission.admit([request], now_us)
            if rejected is not None:
                request.fate = rejected.reason
        if now_us - (told_us or 0) >= 100_000:
            self.forecast, self.forecast_us = WaitForecast.of(self.admission, now_us), now_us
        self._look()

    def _look(self) -> None:
        """What waits, where admission keeps it."""
        if self.admission is not None:
            self.waiting = list(self.admission.waiting)

    def _indices(self, requests: list[Request]) -> list[int]:
        return [self.waiting.index(request) for request in requests]

    def _expire(self, now_us: int) -> None:
        late = [request for request in self.waiting if request.is_late(now_us)]
        for request in late:
            request.fate = "late_waiting"
        if self.admission:
            self.admission.drop(self._indices(late))
        self.waiting = [request for request in self.waiting if request not in late]

    def _answer_early(self, now_us: int) -> None:
        """At the exit rows leave; later those go whose deadlines come, with the answers that they have."""
        if self.running is None or self.exits_us is None or now_us < self.exits_us:
            return
        for request in self.running:
            if request.fate is not None or request.exit_depth == 1.0:
                continue
            leaves = request.is_sure or request.has_settled
            is_due = request.may_settle and request.deadline_us is not None and now_us >= request.deadline_us - 2_000
            if leaves or (is_due and self.ends_us is not None and now_us < self.ends_us):
                late = request.is_late(now_us)
                if late and not leaves:
                    continue  # it has no answer before the end, and then it is late
                request.fate = "late_computed" if late else "answered"
                request.answered_us = None if late else now_us
                request.level = "early" if request.is_sure else "doubtful"

    def _finish(self, now_us: int) -> None:
        assert self.running is not None
        for request in self.running:
            if request.fate is None:
                late = request.is_late(now_us)
                request.fate = "late_computed" if late else "answered"
                request.answered_us = None if late else now_us
        if self.admission:
            passed = self._passed(self.running)
            for request, depth in zip(self.running, passed, strict=True):
                self.admission.accounts.spend_depth(request, depth)
                request.depth = depth
            self.admission.batches.finished(now_us, passed=BatchShape.of(self.running, passed))
        self.running = self.ends_us = self.exits_us = None

    def _passed(self, batch: list[Request]) -> list[float]:
        if batch[0].root == STUDENTS:
            return [request.depth for request in batch]
        return [request.exit_depth if request.is_sure or request.has_settled else 1.0 for request in batch]

    def _takes_us(self, batch: list[Request], depths: list[float]) -> int:
        return max(1, round(self.cost_model.predict_us(self._shape(batch, depths))))

    @staticmethod
    def _shape(batch: list[Request], depths: list[float]) -> BatchShape:
        tokens = sum(depth * request.num_tokens for depth, request in zip(depths, batch, strict=True))
        squares = sum(depth * request.num_tokens**2 for depth, request in zip(depths, batch, strict=True))
        return BatchShape(len(batch), tokens, squares, len({request.hplm_key for request in batch}), max(depths))

    def _start(self, now_us: int) -> bool:
        if self.running is not None or self.staged is None:
            return False
        batch, self.staged = self.staged, None
        stack = batch[0].root
        if self.students:
            self.students.choose(stack, batch, self.student_depths, now_us)
        shape = BatchShape.of(batch)
        if self.admission:
            self.admission.batches.began(stack, shape, now_us)
        for request in batch:
            if request.is_late(now_us):
                request.fate = "late_waiting"
        batch = [request for request in batch if request.fate is None]
        if batch:
            self.running = batch
            self.ends_us = now_us + self._takes_us(batch, self._passed(batch))
            self.exits_us = now_us + self._takes_us(batch, [request.exit_depth for request in batch])
            dues = [request.deadline_us - 2_000 for request in batch if request.deadline_us is not None]
            for event_us in (self.exits_us, *dues):
                if now_us < event_us < self.ends_us:
                    heapq.heappush(self.events, event_us)
            self.batches.append((now_us, self.ends_us, tuple(request.index for request in batch)))
            if self.students:
                self.counts.append(max(self.student_depths.index(request.depth) for request in batch) + 1)
            heapq.heappush(self.events, self.ends_us)
        elif self.admission:
            self.admission.batches.finished(now_us, has_run=False)
        return True

    def _stage(self, now_us: int) -> bool:
        if self.staged is not None or not self.waiting:
            return False
        room: WaitingRoom[Request] = WaitingRoom()
        for index, request in enumerate(self.waiting):
            room.add([request], within_share=not self.admission or bool(self.admission.waiting.within_share[index]))
        room.batches_taken = self.batches_taken
        batch = [self.waiting[index] for index in self.policy.select(room, now_us, self.capacity)]
        is_full = len(batch) < len(self.waiting) or len(batch) >= self.capacity.max_rows
        if self.running is not None and not is_full:
            return False
        if self.admission and (late := self.admission.infeasible(self._indices(batch), now_us)):
            for request in self.admission.drop(late):
                request.fate = "late_waiting"
            self._look()
            return True
        self.batches_taken += 1
        if self.admission:
            self.admission.take_batch(self._indices(batch), now_us)
            self.admission.batches.staged(BatchShape.of(batch), batch[0].root)
        self.staged = batch
        self.waiting = [request for request in self.waiting if request not in batch]
        return True
