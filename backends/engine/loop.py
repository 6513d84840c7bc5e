"""The serve loop: choose what runs next, stage it, run it, answer it, three batches at a time.

Jobs arrive from Triton's threads and wait in the queue. While one thread runs batch k, another stages batch k + 1 and a
third answers batch k - 1, each job through its own `respond`. An error of a job is that job's answer; the loop goes on.

A full batch is staged at once. A batch that still has room waits until nothing runs, so that rows that arrive meanwhile
join it; their adapters are loaded ahead.

Where stacks are cut in stages there are as many run threads. A batch then runs, to all that waits, only until it leaves
the first stage: the next one may begin while it goes on in the others.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext

from backends.clock import now_us
from backends.device_errors import DeviceLostError, client_error
from backends.ending import leave_failed
from backends.engine.answering import reject, split_late
from backends.engine.compute_pool import ComputePool, take_threads
from backends.engine.emitted_queue import EmittedQueue
from backends.engine.forecast_teller import ForecastTeller, OnForecast
from backends.engine.insurance import Insurance
from backends.engine.job import Job
from backends.engine.job_queue import STOPPING, JobQueue
from backends.engine.loading import Loading
from backends.engine.outcomes import Emitted, Outcomes, keep_fallback
from backends.engine.quarantine import Quarantine
from backends.engine.running import BatchRunner
from backends.engine.stack_protocol import Outcome, SoFar, Stack
from backends.engine.staged_batch import StagedBatch
from backends.engine.staging import Stager
from backends.errors import HplmError, UnavailableError
from backends.heartbeat import BEAT_EVERY_S, Beat, no_beat
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.depth_choice import DepthChoice
from backends.scheduling.policies import Policy
from backends.scheduling.rejection import late_waiting
from backends.scheduling.settings import Capacity
from backends.stack_key import StackKey
from backends.trace import Lane, span

LOGGER = logging.getLogger(__name__)
_MOST_IN_FLIGHT = 4
"""Batches that are staged, running or being answered; computing never runs further ahead of the answers. Each further
stage has one more."""
LOOPS = STAGE, RUN, ANSWER = "stage", "run", "answer"
"""The loops of a serve loop, by the names of their heartbeats."""


class ServeLoop:
    """Owns the queue in front of the stacks and the threads behind it.

    Args:
        stack_of: A stack by its key, loaded at first use.
        policy: Chooses each batch.
        capacity: What a batch may hold.
        admission: Decides about arriving jobs; asked under this loop's lock only.
        on_forecast: Told the wait forecast every 100 ms while there is work, and once more when there is none.
        on_failure: Called once after a defect has ended a thread and all jobs have been answered.
        beat_of: Returns the beat of each of `LOOPS`, called each time that loop goes round.
        pool: What the stacks compute on; by default they have one stage.
    """

    def __init__(
        self,
        stack_of: Callable[[StackKey], Stack],
        policy: Policy,
        capacity: Capacity,
        admission: Admission[Job],
        on_forecast: OnForecast | None = None,
        on_failure: Callable[[], None] = leave_failed,
        beat_of: Callable[[str], Beat] = lambda _: no_beat,
        pool: ComputePool | None = None,
    ) -> None:
        stage, self._run_beat, answer = map(beat_of, LOOPS)
        self._admission = admission
        self._teller = ForecastTeller(admission, on_forecast)
        self._on_failure = on_failure
        self._queue = JobQueue(policy, capacity, admission, stage)
        self._changed = self._queue.changed
        self.quarantine = Quarantine()
        self._loading = Loading(stack_of)
        self._stager = Stager(self._loading, self._queue, self.quarantine, self._wait_for_release)
        self._outcomes = Outcomes(self._queue, admission, self.quarantine)
        self._insurance = Insurance()
        self._depths = DepthChoice(admission)
        self._staged: StagedBatch | None = None
        self._running: StagedBatch | None = None
        """The batch that the next one waits for: in the first stage, where there are several."""
        self._num_running = 0  # batches, in all stages
        self._pool = pool
        self._num_run_threads = num_stages = 1 if pool is None else pool.num_stages
        self._most_in_flight = _MOST_IN_FLIGHT + num_stages - 1
        self._in_flight: list[StagedBatch] = []
        self._num_concluded = 0
        """Jobs that have ended here, and so released their leases."""
        self._emitted = EmittedQueue(self._insurance, answer)
        self._threads = [
            threading.Thread(target=self._guarded, args=(target,), name=f"serve{target.__name__}", daemon=True)
            for target in (self._stage_batches, *[self._run_batches] * num_stages, self._answer_outcomes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def answers(self) -> Counter[tuple[str, str]]:
        """Answers of hPLMs with ladders so far, by level and reason."""
        return self._outcomes.answers.copy()

    @property
    def answer_us(self) -> Counter[str]:
        """Time from a row's arrival to its answer, in all, by level; of hPLMs with ladders."""
        return self._outcomes.answer_us.copy()

    # --- arriving ---

    def submit_together(self, requests: Sequence[Sequence[Job]]) -> None:
        """Queue several requests before anything is chosen; each is admitted or rejected by itself, as a whole.

        All jobs are answered in any case.
        """
        now = now_us()
        rejected: list[tuple[Sequence[Job], HplmError]] = []
        with self._changed:
            for jobs in requests:
                rejection = self._quarantined(jobs) or self._queue.add(jobs, now)
                if rejection is not None:
                    rejected.append((jobs, rejection))
            if len(rejected) < len(requests):
                self._changed.notify_all()
            if len(rejected) < len(requests) or self._running is not None:
                self._teller.tell(now)
        for jobs, rejection in rejected:
            reject(jobs, rejection)

    def go_on(self, jobs: Sequence[Job]) -> None:
        """Queue jobs that were admitted elsewhere, in the stage before; only the late ones are rejected."""
        self._outcomes.go_on(jobs)

    def _quarantined(self, jobs: Sequence[Job]) -> HplmError | None:
        for job in jobs:
            if (error := self.quarantine.error(job.hplm_key)) is not None:
                return error
        return None

    def close(self) -> None:
        """Finish the running batch; reject the jobs that wait or are staged."""
        waiting = self._queue.close()
        for thread in self._threads:
            thread.join()
        reject(waiting, UnavailableError(STOPPING))

    # --- the flow of a batch ---

    def _stage_batches(self) -> None:
        take_threads(1)  # copies of a megabyte; the cores belong to the computing
        while self._wait_for_work():
            self._stage_next()
        self._loading.release_ahead()

    def _run_batches(self) -> None:
        try:
            while self._wait_for_staged():
                self._run_next()
        finally:
            with self._changed:
                self._num_run_threads -= 1
                is_last = not self._num_run_threads
            if is_last:
                self._emitted.end()

    def _answer_outcomes(self) -> None:
        take_threads(1)  # as for staging: little is computed here
        while self._answer_next():
            pass

    # --- staging ---

    def _wait_for_work(self) -> bool:
        """Wait until there is something to stage; false once the loop is to stop."""
        self._queue.wait_until(lambda: self._queue.is_closed or bool(self._queue.waiting and self.may_stage()))
        return not self._queue.is_closed

    def may_stage(self) -> bool:
        """Whether another batch may be staged now; a bench without pipelining overrides this."""
        return self._staged is None and len(self._in_flight) < self._most_in_flight

    def _stage_next(self) -> None:
        with span(Lane.STAGING, "choose"):
            choice = self._queue.choose(may_wait=lambda: self._running is not None)
        if choice.is_final:
            self._hand_over(choice.jobs)
        else:
            self._load_ahead(choice.jobs)

    def _load_ahead(self, jobs: Sequence[Job]) -> None:
        """Load what a batch that may still grow will need, until it may not or does."""
        for job in jobs:
            self._queue.beat()
            if self._running is None or not self._loading.load_ahead(job):
                break
        queue = self._queue
        queue.wait_until(lambda: queue.is_closed or self._running is None or queue.has_changed_since_choice)

    def _hand_over(self, jobs: Sequence[Job]) -> None:
        batch = None
        try:
            with span(Lane.STAGING, "stage", rows=len(jobs)):
                batch = self._stager.stage(jobs)
        except Exception as error:  # a defect; jobs that have an answer already are not answered again
            reject(jobs, error)
        self._loading.release_ahead()
        with self._changed:
            self._queue.note_staged([] if batch is None else batch.jobs)
            is_late = self._queue.is_closed
            if batch is not None and not is_late:
                self._staged = batch
                self._in_flight.append(batch)
                self._changed.notify_all()
        if batch is not None and is_late:
            reject(batch.jobs, UnavailableError(STOPPING))

    def _wait_for_release(self) -> bool:
        """Wait until a job of a batch in flight releases its lease; false where none is in flight."""
        with self._changed:
            num_concluded, is_any = self._num_concluded, bool(self._in_flight)
        if not is_any or self._queue.is_closed:
            return False
        self._queue.wait_until(lambda: self._queue.is_closed or self._num_concluded != num_concluded)
        return True

    # --- running ---

    def _wait_for_staged(self) -> bool:
        """Wait until a batch may begin; false once none ever will."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._queue.is_closed or self._may_begin(), BEAT_EVERY_S):
                self._beat_while_idle()
            self._beat_while_idle()
            return self._staged is not None or not self._queue.is_closed

    def _may_begin(self) -> bool:
        return self._staged is not None and self._running is None

    def _beat_while_idle(self) -> None:
        """Beat unless a batch runs on another thread: that one's layers do, and their silence must be noticed."""
        if not self._num_running:
            self._run_beat()

    def _next_staged(self) -> StagedBatch | None:
        """Take the staged batch, to run it; once the loop is to stop, its jobs are rejected instead."""
        with self._changed:
            batch = self._staged
            if batch is None or not (self._queue.is_closed or self._may_begin()):  # another run thread was faster
                return None
            self._staged = None
            if not self._queue.is_closed:
                now = now_us()
                if batch.stack.depths:
                    self._depths.choose(batch.stack.key, batch.jobs, batch.stack.depths, now)
                self._admission.batches.began(batch.stack.key, BatchShape.of(batch.jobs), now)
                self._running = batch
                self._num_running += 1
                self._changed.notify_all()
                return batch
        self._conclude(batch, batch.jobs)
        reject(batch.jobs, UnavailableError(STOPPING))
        return None

    def _run_next(self) -> None:
        """Run the staged batch, if there is one; an idle thread must not hold it, and with it its stack."""
        batch = self._next_staged()
        if batch is not None:
            self._run(batch)

    def _run(self, batch: StagedBatch) -> None:
        """Run the jobs of a batch if any of them is on time; the late ones are rejected first."""
        on_time, late = split_late(batch.jobs)
        for job in late:
            self._emitted.put(Emitted(batch, job, late_waiting()))
        try:
            if on_time:
                batch.has_run = True
                if late:
                    batch.leave_out(late)
                with nullcontext() if self._pool is None else self._pool.passing(lambda: self._let_next_begin(batch)):
                    self._compute(batch)
        finally:
            self._let_next_begin(batch)
            with self._changed:
                self._num_running -= 1
                self._outcomes.note_passed(batch)

    def _let_next_begin(self, batch: StagedBatch) -> None:
        """A batch has left the first stage, or ended there."""
        with self._changed:
            if self._running is batch:
                self._running = None
                self._outcomes.note_finished(batch, now_us())
                self._changed.notify_all()

    def _compute(self, batch: StagedBatch) -> None:
        def conclude(job: Job, outcome: Outcome | HplmError) -> None:
            if isinstance(outcome, SoFar):
                keep_fallback(job, outcome)
                if job.deadline_us is None:  # there is nothing to do before the better answer comes
                    return
            self._emitted.put(Emitted(batch, job, outcome))

        runner = BatchRunner(batch.stack, batch.jobs, batch.open_jobs, conclude, self._note_no_memory)
        try:
            with span(Lane.COMPUTE, "run", **batch.trace_arguments):
                self.compute(runner, batch)
            faults = runner.faults.items()
            failed: Mapping[Job, HplmError] = {job: error for job, error in faults if job in batch.open_jobs}
            self._outcomes.blame(failed, batch, runner.reruns)
        except DeviceLostError:
            raise
        except Exception as error:  # a defect; of the jobs, those without an outcome get the error
            failed = dict.fromkeys(batch.jobs, client_error(error))
        for job, reason in failed.items():
            conclude(job, reason)

    def compute(self, runner: BatchRunner, batch: StagedBatch) -> None:
        """Run a batch; a bench whose processes take turns overrides this."""
        runner.run(batch.packed)

    def _note_no_memory(self, num_tokens: int) -> None:
        with self._changed:
            self._queue.memory.note_failure(num_tokens)

    # --- answering ---

    def _answer_next(self) -> bool:
        """Answer the outcomes that are there; false once nothing runs any more."""
        emitted = self._emitted.take()
        if emitted:
            self._answer(emitted)
        return emitted is not None

    def _answer(self, emitted: Sequence[Emitted]) -> None:
        with span(Lane.ANSWERING, "answer", rows=len(emitted)):
            self._outcomes.take(emitted, self._conclude)
        self._refit({one.batch.stack.key for one in emitted})
        with self._changed:
            self._teller.tell(now_us(), is_idle=not (self._in_flight or self._queue.waiting))

    def _refit(self, keys: Collection[StackKey]) -> None:
        """Fit cost models outside the lock, where one is learned from live batches and due."""
        for costs in map(self._admission.costs_of, keys):
            model = costs.fit_if_due()
            if model is not None:
                with self._changed:
                    costs.adopt(model)

    def _conclude(self, batch: StagedBatch, jobs: Sequence[Job]) -> None:
        """Jobs of a batch have ended here; the batch is in flight until all have."""
        for job in jobs:
            job.release_lease()
        with self._changed:
            batch.open_jobs.difference_update(jobs)
            self._num_concluded += len(jobs)
            if not batch.open_jobs and batch in self._in_flight:
                self._in_flight.remove(batch)
            self._changed.notify_all()

    # --- failing ---

    def _guarded(self, work: Callable[[], None]) -> None:
        """Answer all jobs if a defect ends a thread, for no job may wait for ever; then report the failure."""
        try:
            work()
        except Exception as error:
            LOGGER.exception("the serve loop has failed: %s", client_error(error))
            waiting = self._queue.close()
            with self._changed:
                left = [job for batch in self._in_flight for job in (*batch.open_jobs, *batch.spoilt_jobs)]
                left += self._outcomes.being_answered
            reject([*waiting, *left], UnavailableError(STOPPING))
            self._on_failure()
