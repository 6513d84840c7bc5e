"""The serve loop: select what runs next, stage it, run it, answer it, three batches at a time.

Jobs arrive from Triton's threads and wait here. While one thread runs batch k, another stages batch k + 1 and a third
answers batch k - 1, each job through its own `respond`. Whatever goes wrong with a job is that job's answer; the loop
goes on.

A full batch is staged at once. A batch that still has room waits until there is nothing to run, so that rows that
arrive meanwhile join it; their adapters are loaded ahead.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Queue

from backends.adapters.slots import NoFreeSlotError
from backends.clock import now_us
from backends.engine.answering import answer, in_time_and_late, refuse
from backends.engine.callers import CallerWatch
from backends.engine.crew import take_threads
from backends.engine.job import Job
from backends.engine.loading import Loading, release_all
from backends.engine.stack import ReadyHplm, UpperStack
from backends.engine.staged_batch import Pinned, Result, StagedBatch, packed_on_device, run_batch, unzipped
from backends.errors import HplmError, UnavailableError
from backends.memory import is_out_of_memory, told
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.intake import Intake
from backends.scheduling.outlook import Outlook, outlook_of
from backends.scheduling.policy import Capacity, Policy
from backends.scheduling.refusal import CancelledError, hopeless, late_waiting
from backends.scheduling.waiting_room import WaitingRoom
from backends.trace import Lane, span
from backends.turns import Turns

LOGGER = logging.getLogger(__name__)
_STOPPING = "the server is stopping"
_LINGER_S = 0.05
"""Requests come some hundred a second then, so that a call brings ten or twenty; nobody's deadline notices."""
_BEFORE_END_S = 0.01
"""So long before a batch is predicted to end, requests are taken in: with them the next one is chosen."""
_TELL_EVERY_US = 100_000
_DETAILS_FOR_US = 10_000_000
"""After a row with a deadline: those of whom the details keep all out are not seen here."""


@dataclass(frozen=True)
class PipelineSettings:
    """What runs side by side; everything does but in measurements.

    Computing and whoever else names the file `turns` take turns.
    """

    stages_ahead: bool = True
    turns: str | None = None


@dataclass(frozen=True)
class _Finished:
    """A batch that has run, with the results of those jobs that are not answered yet."""

    batch: StagedBatch
    results: list[tuple[Job, Result]]


class ServeLoop:
    """Owns the queue in front of the stacks.

    Args:
        loading: Pins the hPLMs of jobs in the slots of their stacks.
        policy: Chooses each batch.
        capacity: What a batch may hold.
        admission: Decides about what comes; asked under this loop's lock only.
        on_load: Told the outlook every 100 ms while there is work, and once more when there is none.
    """

    def __init__(
        self,
        loading: Loading,
        policy: Policy,
        capacity: Capacity,
        admission: Admission,
        pipeline: PipelineSettings = PipelineSettings(),
        on_load: Callable[[Outlook, int], None] | None = None,
    ) -> None:
        self._loading = loading
        self._policy = policy
        self._capacity = capacity
        self._admission = admission
        self._on_load = on_load
        self._told_us = 0
        self._deadline_came_us = 0
        self._intake = Intake()
        self._pipeline = pipeline
        self._turns = Turns(pipeline.turns)
        self._changed = threading.Condition()
        self._waiting: WaitingRoom[Job] = WaitingRoom()
        self._num_seen = 0
        """How many waited when a batch was last chosen."""
        self._staged: StagedBatch | None = None
        self._is_running = False
        self._in_flight = 0
        """Batches that hold pins: staged, running or not yet answered."""
        self._stopping = False
        self._finished: Queue[_Finished | None] = Queue(maxsize=1)
        targets = (self._stage_batches, self._run_batches, self._answer_batches)
        self._threads = [
            threading.Thread(target=self._guarded, args=(target,), name=f"serve{target.__name__}", daemon=True)
            for target in targets
        ]
        for thread in self._threads:
            thread.start()
        self._callers = CallerWatch(self._snapshot_of_waiting, self._drop)

    def submit(self, jobs: Sequence[Job], came_straight: bool = True) -> None:
        """Queue jobs, all or none; they are answered in any case.

        Args:
            jobs: Of one request.
            came_straight: Whether others that come now are likely to be on the way as long as these were.
        """
        refusal: HplmError | None = UnavailableError(_STOPPING)
        with self._changed:
            if not self._stopping:
                now = now_us()
                if came_straight:
                    self._intake.note(jobs[0].read_us, now)
                refusal = self._admitted(jobs, now)
                if any(job.deadline_us is not None for job in jobs):
                    self._deadline_came_us = now
                if refusal is None:
                    self._queue(jobs)
                    self._tell_load(now)
                    self._changed.notify_all()
        if refusal is not None:
            refuse(jobs, refusal)

    def _admitted(self, jobs: Sequence[Job], now: int) -> HplmError | None:
        """None if they are. A defect on the way is their answer: raised, it would end the server under everybody."""
        try:
            return self._admission.admit(jobs, now)
        except Exception as error:
            LOGGER.exception("a request could be neither admitted nor refused")
            return told(error)

    def submit_together(self, requests: Sequence[Sequence[Job]]) -> None:
        """Queue several requests before anything is chosen; each of them is taken or refused by itself."""
        with self._changed:
            for jobs in requests:
                self.submit(jobs)

    def close(self) -> None:
        """Finish the running batch, refuse what waits and what is staged."""
        with self._changed:
            self._stopping = True
            refused = self._waiting.take_all()
            self._changed.notify_all()
        self._callers.close()
        for thread in self._threads:
            thread.join()
        refuse(refused, UnavailableError(_STOPPING))

    def _guarded(self, work: Callable[[], None]) -> None:
        """A defect that ends a thread ends the loop: better refused than waiting for ever."""
        try:
            work()
        except Exception:
            LOGGER.exception("the serve loop has failed; restart the server")
            with self._changed:
                self._stopping = True
                refused = self._waiting.take_all()
                staged, self._staged = self._staged, None
                self._changed.notify_all()
            refuse([*refused, *(staged.jobs if staged is not None else ())], UnavailableError(_STOPPING))

    # --- waiting ---

    def _queue(self, jobs: Sequence[Job]) -> None:
        """In the order of fair shares: behind all that start no later."""
        for job in jobs:
            self._waiting.add([job], self._admission.start_us(job), self._admission.is_within_share(job))

    def _tell_load(self, now: int, is_idle: bool = False) -> None:
        """Whoever hears of it only refuses earlier what would be refused anyway, so a defect costs nobody an answer."""
        if self._on_load is None or not (is_idle or now - self._told_us >= _TELL_EVERY_US):
            return
        self._told_us = now
        in_detail = now - self._deadline_came_us < _DETAILS_FOR_US
        try:
            self._on_load(outlook_of(self._admission, now, self._intake.counted_us(now), in_detail), now)
        except Exception:
            LOGGER.exception("what the engine has to do could not be told")

    def _snapshot_of_waiting(self) -> list[Job]:
        with self._changed:
            return list(self._waiting)

    def _drop(self, jobs: Sequence[Job]) -> None:
        """Their callers are gone; some may have left the queue meanwhile."""
        gone = set(jobs)
        with self._changed:
            dropped = self._waiting.take([place for place, job in enumerate(self._waiting) if job in gone])
            self._admission.withdraw(dropped)
            self._changed.notify_all()
        refuse(dropped, CancelledError())

    def linger(self) -> None:
        """Return shortly before the next batch is chosen, as far as that is known, or a little later than now."""
        with self._changed:
            left_s = _LINGER_S
            if self._staged is None:
                left_s = min(left_s, self._admission.left_us(now_us()) / 1e6 - _BEFORE_END_S)
            if left_s > 0:
                self._changed.wait_for(lambda: self._stopping or not self._is_running, left_s)

    # --- staging ---

    def _stage_batches(self) -> None:
        take_threads(1)  # copies of a megabyte; the cores belong to the computing
        while self._wait_for_work():
            jobs, is_final = self._select()
            if not is_final:
                self._load_ahead(jobs)
            elif jobs:
                self._hand_over(jobs)
        self._loading.let_go()

    def _wait_for_work(self) -> bool:
        """Whether there is anything to stage; false once the loop is to stop."""
        self._wait_until(lambda: bool(self._stopping or (self._waiting and self._may_stage())))
        return not self._stopping

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Whoever is late in the queue, or becomes so meanwhile, is refused at once."""
        while True:
            with self._changed:
                late = self._take_late()
                if not late:
                    if is_so():
                        return
                    self._changed.wait(self._until_next_deadline_s())
            refuse(late, late_waiting())

    def _take_late(self) -> list[Job]:
        late = self._waiting.take_late(now_us())
        self._admission.give_up(late)
        return late

    def _until_next_deadline_s(self) -> float | None:
        next_deadline_us = self._waiting.next_deadline_us
        if next_deadline_us == math.inf:
            return None
        return min(max(0.0, (next_deadline_us - now_us()) / 1e6), threading.TIMEOUT_MAX)

    def _may_stage(self) -> bool:
        return self._staged is None and (self._pipeline.stages_ahead or not self._in_flight)

    def _select(self) -> tuple[list[Job], bool]:
        """The next batch; and whether that is final, and taken out of the queue.

        Whoever would come too late in it is refused, and leaves room for others.
        """
        while True:
            with self._changed:
                chosen = self._chosen(now_us())
                jobs = [self._waiting[place] for place in chosen]
                self._num_seen = len(self._waiting)
                if not jobs or (self._is_running and not self._is_full(chosen)):
                    return jobs, False
                late = set(self._admission.hopeless(jobs, now_us()))
                if not late:
                    # Admission first: should it fail, they still wait, and whoever waits is refused then.
                    self._admission.take(jobs, now_us())
                    self._waiting.take_batch(chosen)
                    self._note_staged(jobs)
                    return jobs, True
                self._admission.give_up([job for job in jobs if job in late])
                refused = self._waiting.take([place for place in chosen if self._waiting[place] in late])
            refuse(refused, hopeless())

    def _is_full(self, chosen: Sequence[int]) -> bool:
        """Whether nobody who waits or comes could still join; those of other roots never could."""
        return len(chosen) >= self._capacity.max_rows or len(chosen) < self._waiting.count_of_root_at(chosen[0])

    def _chosen(self, now: int) -> list[int]:
        try:
            chosen = self._policy.select(self._waiting, now, self._capacity)
            _require_places(chosen, len(self._waiting))
            return chosen
        except Exception:
            LOGGER.exception("the policy failed; the oldest job runs alone")
            return [0] if self._waiting else []

    def _load_ahead(self, jobs: Sequence[Job]) -> None:
        """Load what a batch that may still grow will need, until it may not or does."""
        for job in jobs:
            if not self._is_running or not self._loading.load_ahead(job):
                break
        self._wait_until(lambda: self._stopping or not self._is_running or len(self._waiting) != self._num_seen)

    def _note_staged(self, jobs: Sequence[Job]) -> None:
        self._admission.staged(BatchShape.of(jobs) if jobs else None, jobs[0].root if jobs else "")

    def _hand_over(self, jobs: list[Job]) -> None:
        staged = None
        try:
            with span(Lane.STAGING, "stage", rows=len(jobs)):
                staged = self._stage(jobs)
        except Exception as error:  # a defect; whoever has an answer already is not answered again
            refuse(jobs, error)
        finally:
            self._loading.let_go()
            with self._changed:
                self._note_staged([] if staged is None else staged.jobs)
        if staged is None:
            return
        with self._changed:
            is_late = self._stopping
            if not is_late:
                self._staged = staged
                self._in_flight += 1
                self._changed.notify_all()
        if is_late:
            staged.release()
            refuse(staged.jobs, UnavailableError(_STOPPING))

    def _stage(self, jobs: list[Job]) -> StagedBatch | None:
        """Pin adapters and pack rows; a job whose adapter cannot be had is answered with the reason.

        Jobs for whose adapters there is no slot wait on in front of the queue.
        """
        stack = self._loading.stack_of(jobs[0].root)
        pinned: list[Pinned] = []
        for place, job in enumerate(jobs):
            try:
                pinned.append((job, self._ready(job)))
            except NoFreeSlotError:
                self._put_back(jobs[place:])
                break
            except Exception as error:
                refuse([job], error)
        return self._packed(stack, pinned) if pinned else None

    def _ready(self, job: Job) -> ReadyHplm:
        """Pin the job's hPLM, if need be in a slot that was pinned ahead or for a batch before."""
        while True:
            with self._changed:
                in_flight = self._in_flight
            try:
                return self._loading.ready(job)
            except NoFreeSlotError:
                if self._loading.let_go():
                    continue
                if not in_flight or self._stopping:
                    raise
            self._wait_until(lambda count=in_flight: self._stopping or self._in_flight < count)  # type: ignore[misc]

    def _packed(self, stack: UpperStack, pinned: Sequence[Pinned], may_split: bool = True) -> StagedBatch | None:
        """Where there is no memory for all rows, half of them is tried, and the others wait on."""
        jobs, hplms = unzipped(pinned)
        try:
            return StagedBatch(jobs, hplms, stack, packed_on_device(stack, pinned))
        except Exception as error:
            half = len(jobs) // 2 if may_split and is_out_of_memory(error) else 0
            release_all((stack, hplm) for hplm in hplms[half:])
            if not half:
                refuse(jobs, error)
                return None
        self._put_back(jobs[half:])
        return self._packed(stack, pinned[:half], may_split=False)

    def _put_back(self, jobs: list[Job]) -> None:
        with self._changed:
            if not self._stopping:
                self._admission.put_back(jobs)
                self._waiting.put_back(jobs)
                return
        refuse(jobs, UnavailableError(_STOPPING))

    # --- running ---

    def _run_batches(self) -> None:
        try:
            while (staged := self._next_staged()) is not None:
                results = self._results(staged)
                try:
                    self._note_finished(staged)
                finally:  # whatever a defect ends, who has been computed is answered
                    self._finished.put(_Finished(staged, results))
                with self._changed:
                    self._is_running = False
                    self._changed.notify_all()
        finally:
            self._finished.put(None)

    def _results(self, staged: StagedBatch) -> list[tuple[Job, Result]]:
        """Of the jobs that are still in time; those that are not are refused before the others run."""
        in_time, late = in_time_and_late(staged.jobs)
        refuse(late, late_waiting())
        if not in_time:
            return []
        results = dict(zip(staged.jobs, self._results_of_all(staged), strict=True))
        return [(job, results[job]) for job in in_time]

    def _results_of_all(self, staged: StagedBatch) -> list[Result]:
        staged.has_run = True
        try:
            with self._turns.taken(), span(Lane.COMPUTE, "run", rows=len(staged.jobs)):
                return run_batch(staged)
        except Exception as error:  # a defect
            return [told(error)] * len(staged.jobs)

    def _note_finished(self, batch: StagedBatch) -> None:
        """Admission learns what the batch took."""
        now = now_us()
        with self._changed:
            self._admission.finished(now, batch.has_run, late=sum(job.is_late(now) for job in batch.jobs))

    def _next_staged(self) -> StagedBatch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._staged is not None)
            staged = self._staged
            if staged is not None and not self._stopping:
                self._admission.began(staged.jobs[0].root, BatchShape.of(staged.jobs), now_us())
                self._staged = None
                self._is_running = True
                self._changed.notify_all()
                return staged
            self._staged = None
        if staged is not None:
            self._let_go(staged)
            refuse(staged.jobs, UnavailableError(_STOPPING))
        return None

    # --- answering ---

    def _answer_batches(self) -> None:
        take_threads(1)  # as for staging: little is computed here
        while (finished := self._finished.get()) is not None:
            self._let_go(finished.batch)
            with span(Lane.ANSWERING, "answer", rows=len(finished.results)):
                answer(finished.results)
            with self._changed:
                self._tell_load(now_us(), is_idle=not (self._in_flight or self._waiting))

    def _let_go(self, batch: StagedBatch) -> None:
        batch.release()
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()


def _require_places(chosen: Sequence[int], num_waiting: int) -> None:
    if len(set(chosen)) < len(chosen) or not all(0 <= place < num_waiting for place in chosen):
        raise ValueError(f"chose {len(chosen)} places, not all different and below {num_waiting}")
