"""A server with all that stands around its batches, event by event, by another hand: the front, and shared cores.

The loop is that of `simulation_reference`; the books of the front are the product's own (`AcceptedLoad`,
`RecentTimes`), as they are the simulator's.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from backends.lower.accepted_load import AcceptedLoad, Work
from backends.lower.recent_times import RecentTimes
from backends.scheduling.rejection import Rejection
from backends.scheduling.wait_forecast import Told, WaitForecast
from builder.placement.server_costs import ServerCosts
from simulation_reference import ReferenceLoop, Request


@dataclass
class ReferenceServer(ReferenceLoop):
    """One process of the lower model stands in front.

    `sent_us` are the moments at which requests leave; `scatter_at` is the place of the last factor that was used.
    """

    costs: ServerCosts | None = None
    sent_us: list[int] = field(default_factory=list)
    scatter_at: int = 0
    on_the_way: list[Request] = field(default_factory=list)
    texts: list[tuple[Request, Work]] = field(default_factory=list)
    encoded: list[Request] = field(default_factory=list)
    encodes_until_us: int = 0
    looks_us: int = 0
    told: Told | None = None
    load: AcceptedLoad = field(default_factory=AcceptedLoad)
    row_times: RecentTimes = field(default_factory=RecentTimes)
    call_times: RecentTimes = field(default_factory=RecentTimes)
    ready_us: int = 0
    began_us: int = 0
    alone_us: int = 0
    num_sent: int = 0
    num_received: int = 0
    answering_until_us: int = 0

    def add(self, request: Request) -> None:
        """Let a request leave at its time, which is not before those that have left already."""
        assert self.costs is not None
        self.sent_us.append(request.arrived_us)
        heapq.heappush(self.events, request.arrived_us)
        request.arrived_us += round(self.costs.front.reach_us)
        self.on_the_way.append(request)
        heapq.heappush(self.events, request.arrived_us)

    def held(self) -> list[Request]:
        return [*self.on_the_way, *(request for request, _ in self.texts), *self.encoded, *super().held()]

    def step(self, now_us: int) -> None:
        self._note_sent(now_us)
        self._expire(now_us)
        while self._front(now_us):
            self._expire(now_us)
        if self.ends_us is not None and self.ends_us <= now_us:
            self._finish(now_us)
        while self._start(now_us) or self._stage(now_us) or self._front(now_us):
            pass
        for event_us in (self.ends_us, self.ready_us, self.looks_us, self.encodes_until_us):
            if event_us is not None and event_us > now_us and event_us not in self.events:
                heapq.heappush(self.events, event_us)

    # --- the front ---

    def _front(self, now_us: int) -> bool:
        """Do the next thing that is due in front of the engine; whether there was any."""
        assert self.costs is not None
        if self.on_the_way and self.on_the_way[0].arrived_us <= now_us:
            self._check(self.on_the_way.pop(0), now_us)
            return True
        if self.encoded and self.encoded[0].arrived_us <= now_us:
            self._hand_over(now_us)
            return True
        is_full = len(self.texts) >= self.costs.front.batch_rows
        if self.texts and (self.looks_us <= now_us or (is_full and self.encodes_until_us <= now_us)):
            self._encode(now_us)
            return True
        return False

    def _check(self, request: Request, now_us: int) -> None:
        forecast = None if self.told is None else self.told.forecast
        self._forget(now_us)
        work_us = 0.0 if forecast is None else forecast.row_work_us(request.num_tokens)
        work = Work(request.tenant, work_us, request.num_tokens)
        if request.deadline_us is not None:
            if request.deadline_us <= now_us:
                request.fate = Rejection.LATE_ON_ARRIVAL
                return
            ahead_us = self.load.ahead_us(work.tenant, work.us) if forecast is not None and forecast.is_fair else 0.0
            wait_us = len(self.texts) * self.row_times.usual_us + self.call_times.usual_us
            if self._finish_us(request, request.num_tokens, now_us) + wait_us + ahead_us > request.deadline_us:
                request.fate = Rejection.PREDICTED_LATE
                return
        self.load.accept(work)
        if not self.texts:
            self.looks_us = max(self.looks_us, now_us)
        self.texts.append((request, work))

    def _encode(self, now_us: int) -> None:
        assert self.costs is not None
        front = self.costs.front
        self._forget(now_us)
        taken: list[Request] = []
        while self.texts and len(taken) < front.batch_rows:
            request, work = self.texts.pop(0)
            if request.deadline_us is not None and request.deadline_us <= now_us:
                request.fate = Rejection.LATE_WAITING
            elif request.deadline_us is not None and self._finish_us(request, 1, now_us) > request.deadline_us:
                request.fate = Rejection.PREDICTED_LATE
            if request.fate is not None:
                self.load.drop(work)
            else:
                self.load.forward(work, now_us)
                taken.append(request)
        self.encodes_until_us = self.looks_us = now_us
        if taken:
            takes_us = front.encoding.constant_us + front.encoding.per_row_us * len(taken)
            self.encodes_until_us = now_us + max(1, round(takes_us))
            self.row_times.note(takes_us / len(taken))
            self.call_times.note(takes_us)
            engine_us = 0
            if self.told is not None and now_us - self.told.at_us <= 1_000_000:
                engine_us = self.told.at_us + int(self.told.forecast.finish_in_us(1)) - self.encodes_until_us
            self.looks_us = self.encodes_until_us + round(min(25_000, max(0.0, 0.05 * engine_us)))
        for request in taken:
            request.arrived_us = self.encodes_until_us + round(front.hop_us)
            heapq.heappush(self.events, request.arrived_us)
        self.encoded += taken

    def _hand_over(self, now_us: int) -> None:
        handed = [request for request in self.encoded if request.arrived_us <= now_us]
        self.encoded = self.encoded[len(handed) :]
        for request in handed:
            self._expire(now_us)
            self._enter(request, now_us)

    def _enter(self, request: Request, now_us: int) -> None:
        assert self.admission is not None
        if self.running is not None and self.ends_us is not None and now_us < self.ends_us:
            self.num_received += 1
            self._move_end()
        rejected = self.admission.admit([request], now_us)
        if rejected is not None:
            request.fate = rejected.reason
        elif request.deadline_us is not None:
            heapq.heappush(self.events, request.deadline_us)
        self._look()
        self._tell(now_us)

    def _tell(self, now_us: int, at_once: bool = False) -> None:
        assert self.admission is not None
        if at_once or now_us - (self.forecast_us or 0) >= 100_000:
            self.forecast_us = now_us
            self.told = Told(now_us, WaitForecast.of(self.admission, now_us))

    def _finish_us(self, request: Request, num_tokens: int, now_us: int) -> float:
        if self.told is None or now_us - self.told.at_us > 1_000_000 or request.deadline_us is None:
            return now_us
        left_us = request.deadline_us - self.told.at_us
        in_us = int(self.told.forecast.finish_in_us(num_tokens, (request.tenant,), left_us))
        return max(now_us, self.told.at_us + in_us)

    def _forget(self, now_us: int) -> None:
        self.load.forget_told(max(0 if self.told is None else self.told.at_us, now_us - 300_000))

    # --- the cores ---

    def _note_sent(self, now_us: int) -> None:
        """Each request that is sent while a batch runs makes it later."""
        while self.sent_us and self.sent_us[0] <= now_us:
            sent_us = self.sent_us.pop(0)
            if self.running is not None and self.ends_us is not None and sent_us < self.ends_us:
                self.num_sent += 1
                self._move_end()
            else:
                self.sent_now = sent_us, (self.sent_now[1] + 1 if self.sent_now[0] == sent_us else 1)

    sent_now: tuple[int, int] = (-1, 0)
    """The last moment at which requests were sent, and how many of them moved no batch."""

    def _move_end(self) -> None:
        assert self.costs is not None
        cores = self.costs.cores
        taken_us = cores.per_offered_us * self.num_sent + cores.per_received_us * self.num_received
        latest_us = self.began_us + round(cores.most_stretch * self.alone_us)
        self.ends_us = min(latest_us, self.began_us + self.alone_us + round(taken_us))

    def _takes_us(self, batch: list[Request], depths: list[float]) -> int:
        assert self.costs is not None
        factor = self.costs.cores.slowness * self.costs.scatter[self.scatter_at]
        plain = super()._shape(batch, depths)
        return max(1, round(factor * self.cost_model.predict_us(plain)))

    def _start(self, now_us: int) -> bool:
        assert self.costs is not None
        if self.staged is None or self.running is not None or now_us < self.ready_us:
            return False
        self.scatter_at = (self.scatter_at + 1) % len(self.costs.scatter)
        has_started = super()._start(now_us)
        if self.running is not None:
            self.began_us = now_us
            self.alone_us = self._takes_us(self.running, self._passed(self.running))
            self.num_sent = self.sent_now[1] if self.sent_now[0] == now_us else 0
            self.num_received = 0
            self._move_end()
        else:
            self.scatter_at = (self.scatter_at - 1) % len(self.costs.scatter)
            self._tell(now_us, at_once=not self.waiting and self.staged is None)
        return has_started

    def _stage(self, now_us: int) -> bool:
        assert self.costs is not None
        was_staged = self.staged is not None
        has_changed = super()._stage(now_us)
        if not was_staged and self.staged is not None:
            self.ready_us = now_us + round(self.costs.staging.of(len(self.staged)))
        return has_changed

    def _finish(self, now_us: int) -> None:
        assert self.costs is not None and self.running is not None and self.admission is not None
        batch = self.running
        judged_us = max(now_us, self.answering_until_us)
        self.answering_until_us = judged_us + round(self.costs.answering.of(len(batch)))
        super()._finish(now_us)
        for request in batch:
            if request.fate in ("answered", "late_computed"):
                late = request.is_late(judged_us)
                request.fate = "late_computed" if late else "answered"
                request.answered_us = None if late else judged_us
        place, (start_us, _, rows) = len(self.batches) - 1, self.batches[-1]
        self.batches[place] = (start_us, now_us, rows)
        self._tell(now_us, at_once=not self.waiting and self.staged is None)
