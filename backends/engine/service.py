"""The service of `hplm_upper`: hidden rows become jobs, and jobs' answers become responses."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import torch

from backends.adapters.host_bank import HostBank
from backends.ending import leave_failed
from backends.engine.audit import Audit
from backends.engine.cold_start import ColdStartQueue
from backends.engine.costs import EngineCosts
from backends.engine.failed_audits import FailedAudits
from backends.engine.job import Job
from backends.engine.loaded_stacks import LoadedStacks
from backends.engine.loop import RUN, ServeLoop
from backends.engine.mate_gathering import MateGathering
from backends.engine.next_stage import StageRows
from backends.engine.open_request import Answered, OpenRequest, RespondRequest
from backends.engine.outbox import Outbox
from backends.engine.row_words import brought_words
from backends.engine.settings import EngineSettings
from backends.engine.stack import StackSettings
from backends.engine.stack_builder import StackBuilder, compute_pool_of
from backends.engine.stack_protocol import Stack
from backends.engine.stage_cuts import StageCuts
from backends.engine.ticket_gate import TicketGate
from backends.engine.version_lookups import VersionLookups
from backends.errors import HplmError, InvalidArgumentError, UnavailableError, presentable
from backends.heartbeat import Beat, no_beat
from backends.held_roots import Roots, holds
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.admission import Admission
from backends.scheduling.policies import policy_of
from backends.scheduling.rejection import RejectedError, Rejection
from backends.scheduling.settings import AdmissionSettings, Capacity, PolicySettings
from backends.scheduling.wait_forecast import WaitForecast
from backends.stack_key import FULL, StackKey
from backends.stage_wire import STATES, Mates
from backends.storage import read_errors_are_clear
from backends.trace import Lane, span
from backends.wire import (
    AUTO,
    EARLY,
    TICKET,
    WORDS,
    Int64Array,
    Rows,
    Ticket,
    owned,
    require_hidden,
    unfold_rows,
)

LOGGER = logging.getLogger(__name__)
_BATCHES_UNSENT = 4
"""Batches whose answers may wait to be sent; with one, callers who ask again at once got fewer answers."""
_LONGEST_FAREWELL_S = 5.0
"""After a defect the process ends, even if what waits cannot be sent."""


class HiddenRows(NamedTuple):
    """A request as `hplm_lower` or the stage before has sent it; the tensors may be Triton's own memory.

    Shape:
        hidden: `[B, ceil(T / B), H]` (see `fold_rows`); tickets: `[B, len(TICKET_COLUMNS)]`; words: B; mates: see
        `encode_mates`, of the stage before.
    """

    hidden: Rows
    tickets: Int64Array
    words: Sequence[bytes]
    mates: Int64Array | None = None


class _Received(NamedTuple):
    """A request whose tickets are decoded; `hidden` is the engine's own copy."""

    hidden: Rows
    tickets: Sequence[Ticket]
    words: Sequence[bytes]
    mates: Sequence[Mates | None]


class _Request(NamedTuple):
    """A request whose hPLMs are known."""

    hidden: Rows
    tickets: Sequence[Ticket]
    entries: Sequence[HplmEntry]
    stacks: Sequence[StackKey]
    """Where each row begins."""
    words: Sequence[bytes]
    mates: Sequence[Mates | None]


_Begin = Callable[[_Request, RespondRequest], Sequence[Job]]
"""Makes the jobs of a request; none where it waits for its root."""


class UpperService:
    """The stacks of all roots on one device, and the loop that runs them.

    Args:
        home: Home of the roots and hPLMs.
        snapshot: Live versions.
        settings: Device, precision and limits of the stacks.
        capacity: Limits of a batch.
        admission: Limits and shares.
        policy: Which waiting rows make the next batch.
        on_forecast: Told the wait forecast now and then.
        threads: Number of compute threads; by default PyTorch's own number.
        loop_type: Serve loop; a bench runs one without pipelining.
        on_failure: Called once after a defect has ended the loop and all requests have been answered.
        gate: Which tickets are believed; by default those of this process.
        beat_of: Returns the beat of each of `LOOPS`.
        roots: Loaded at once; others are loaded when they are asked for, and go some time after the last request.
    """

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        settings: StackSettings,
        capacity: Capacity,
        admission: AdmissionSettings = AdmissionSettings(),
        policy: PolicySettings = PolicySettings(),
        on_forecast: Callable[[WaitForecast, int], None] | None = None,
        threads: int | None = None,
        loop_type: type[ServeLoop] = ServeLoop,
        on_failure: Callable[[], None] = leave_failed,
        gate: TicketGate | None = None,
        beat_of: Callable[[str], Beat] = lambda _: no_beat,
        roots: Roots = None,
    ) -> None:
        self._home = home
        self._gate = gate or TicketGate()
        self._settings = settings
        admission = admission.with_live(snapshot.quotas.weights, snapshot.quotas.waiting_rows)
        self.audit = Audit(FailedAudits(home, settings.dtype))
        self._host_bank = HostBank(home, snapshot.knows, self.audit.recall)
        self._snapshot = snapshot
        threads = torch.get_num_threads() if threads is None else threads
        engine = EngineSettings(settings, capacity, threads)
        self._cuts = StageCuts(home, engine)
        self._costs = EngineCosts(home, engine, self._cuts)
        chooser = policy_of(policy, lambda key: self._costs.of(key).model)
        self.admission: Admission[Job] = Admission(self._costs.of, capacity, admission, chooser.order)
        self.refusals: Counter[Rejection] = Counter()
        self._counting = threading.Lock()
        self._on_failure = on_failure
        self._outbox = Outbox(_BATCHES_UNSENT * capacity.max_rows)
        self._compute_pool = pool = compute_pool_of(engine, beat_of(RUN))
        self._builder = StackBuilder(home, snapshot, engine, pool, self._cuts, self._host_bank, self.audit)
        self._stacks = LoadedStacks(
            self._build, self.admission.serves, self._forget, lambda key: holds(roots, key.root)
        )
        self._stacks.load({key for entry in snapshot.live() for key in entry.stacks if holds(roots, key.root)})
        # Rows that were admitted wait for a root in a later stage only where that one loads it later than the first.
        most = 2 * capacity.max_rows if settings.is_later_stage else admission.max_waiting
        self._cold_starts = ColdStartQueue(self._stacks, most)
        self._lookups = VersionLookups(snapshot)
        snapshot.prepare_with(lambda domain: self._load_held(domain.root, roots))
        watched = self._outbox.watched(beat_of)
        self._loop = loop_type(
            self._stacks.of, chooser, capacity, self.admission, on_forecast, self._fail, beat_of=watched, pool=pool
        )
        self._mates = _mates_of(settings, self._loop)
        self._queue_all = self._loop.submit_together if self._mates is None else self._mates.add

    def submit(self, hidden: Rows, tickets: Int64Array, words: Sequence[bytes], respond: RespondRequest) -> None:
        """Queue one request's rows; see `submit_all`."""
        self.submit_all([(HiddenRows(hidden, tickets, words), respond)])

    def submit_all(self, requests: Sequence[tuple[HiddenRows, RespondRequest]]) -> None:
        """Queue the rows of a call's requests at once: the serve loop wakes up once, and chooses among all of them.

        Tensors in foreign memory are copied, so that memory is free at once. Rows of a root that is not loaded yet, or
        of a version that the registry is still asked for, wait elsewhere than on the caller's thread, which brings the
        requests of all tenants.
        """
        with span(Lane.QUEUE, "accept", requests=len(requests)):
            accepted = [self._accepted(rows, respond) for rows, respond in requests]
            self._queue_all([jobs for jobs in accepted if jobs])

    def _accepted(self, rows: HiddenRows, respond: RespondRequest) -> Sequence[Job]:
        """Make a request's jobs; none where it is answered already, or waits for its versions or its root."""
        respond = self._sent_aside(respond)
        try:
            return self._once_known(self._read(rows), respond, self._jobs_or_cold_start)
        except Exception as error:
            respond(presentable(error))
        return ()

    def _once_known(self, received: _Received, respond: RespondRequest, begin: _Begin) -> Sequence[Job]:
        """Begin a request, or return no jobs and begin it once its versions were looked up."""
        unknown = [ticket.hplm_key for ticket in received.tickets if not self._snapshot.knows(ticket.hplm_key)]
        if not unknown:
            return begin(self._resolved(received), respond)
        self._lookups.add(unknown, len(received.tickets), lambda: self._begin_known(received, unknown, respond, begin))
        return ()

    def _begin_known(
        self, received: _Received, looked_up: Sequence[int], respond: RespondRequest, begin: _Begin
    ) -> None:
        try:
            self._lookups.require_found(looked_up)
            jobs = begin(self._resolved(received), respond)
            self._queue_all([jobs] if jobs else [])
        except Exception as error:
            respond(presentable(error))

    def _jobs_or_cold_start(self, request: _Request, respond: RespondRequest) -> Sequence[Job]:
        key = self._missing_stack(request)
        if key is None:
            return self._jobs(request, respond)
        self._cold_starts.add(key, len(request.words), lambda: self._queue(request, respond))
        return ()

    def _missing_stack(self, request: _Request) -> StackKey | None:
        return next((key for key in request.stacks if not self._stacks.holds(key)), None)

    def _queue(self, request: _Request, respond: RespondRequest) -> None:
        try:
            self._queue_all([self._jobs(request, respond)])
        except Exception as error:
            respond(presentable(error))

    def run(self, requests: Sequence[HiddenRows | HplmError]) -> list[Answered]:
        """Answer a batch that Triton has formed; returns once all of it is answered.

        Its rows are queued together, so they run as one batch: in parts only where they exceed the capacity or the
        slots, or are of several roots. Errors among the requests, which could not be read, are returned as they are.
        """
        answered: list[Future[Answered]] = [Future() for _ in requests]
        accepted: list[Sequence[Job]] = []
        with span(Lane.QUEUE, "accept", requests=len(requests)):
            for request, future in zip(requests, answered, strict=True):
                if isinstance(request, HplmError):
                    future.set_result(request)
                    continue
                try:
                    counted = self._counted(future.set_result)
                    accepted.append(self._once_known(self._read(request), counted, self._loaded_jobs))
                except Exception as error:
                    future.set_result(presentable(error))
        self._loop.submit_together([jobs for jobs in accepted if jobs])
        return [future.result() for future in answered]

    def _loaded_jobs(self, request: _Request, respond: RespondRequest) -> Sequence[Job]:
        """Make the jobs of a request. It is rejected if its root is still loading, because all tenants would wait."""
        if (key := self._missing_stack(request)) is not None:
            self._cold_starts.begin(key)
            raise UnavailableError("the root of this hPLM is being loaded; try again")
        return self._jobs(request, respond)

    @property
    def answers(self) -> Counter[tuple[str, str]]:
        """Answers of hPLMs with ladders so far, by level and reason."""
        return self._loop.answers

    @property
    def answer_us(self) -> Counter[str]:
        """Time from a row's arrival to its answer, in all, by level; of hPLMs with ladders."""
        return self._loop.answer_us

    @property
    def registry_age_s(self) -> float:
        """Seconds since the registry was read."""
        return self._snapshot.age_s

    def release_unused(self) -> None:
        """Unload roots, and unmap weights, that no live hPLM uses any more."""
        self._host_bank.unmap_unknown()
        self._stacks.keep(self._snapshot.stacks())

    def close(self) -> None:
        self._lookups.close()
        self._cold_starts.close()
        self._loop.close()
        if self._mates is not None:
            self._mates.close()
        self._outbox.close()
        self._compute_pool.close()

    def _load_held(self, root: str, roots: Roots) -> None:
        if holds(roots, root):
            self._stacks.of(StackKey(root))

    def _fail(self) -> None:
        """Send what waits to be sent before the process may end."""
        self._outbox.close(_LONGEST_FAREWELL_S)
        self._on_failure()

    def _counted(self, respond: RespondRequest) -> RespondRequest:
        def respond_and_count(answers: Answered) -> None:
            self._count(answers)
            respond(answers)

        return respond_and_count

    def _count(self, answers: Answered) -> None:
        if isinstance(answers, RejectedError):
            with self._counting:
                self.refusals[answers.reason] += 1

    def _sent_aside(self, respond: RespondRequest) -> RespondRequest:
        """Send on the senders' threads; errors are counted, and wait for no answers."""

        def send(answers: Answered) -> None:
            self._count(answers)
            self._outbox.send(respond, answers)

        return send

    def _read(self, rows: HiddenRows) -> _Received:
        tickets = self._gate.accept(rows.tickets)
        if not tickets:
            raise InvalidArgumentError("a request has at least one row")
        if len(rows.words) != len(tickets):
            raise InvalidArgumentError(f"{WORDS} has {len(rows.words)} rows where {TICKET} has {len(tickets)}")
        lengths, mates = [ticket.num_tokens for ticket in tickets], list[Mates | None]()
        if rows.mates is None:
            require_hidden(rows.hidden, lengths)
        else:
            require_hidden(rows.hidden, lengths, STATES, np.float32)
            mates += self._gate.accept_mates(rows.mates, rows.tickets)
        return _Received(owned(rows.hidden), tickets, list(rows.words), mates or [None] * len(tickets))

    def _resolved(self, received: _Received) -> _Request:
        entries = [self._snapshot.by_key(ticket.hplm_key) for ticket in received.tickets]
        stacks = [entry.way(ticket.level).stack for entry, ticket in zip(entries, received.tickets, strict=True)]
        if self._settings.stage is not None and EARLY in [ticket.level for ticket in received.tickets]:
            raise InvalidArgumentError(f"the level {EARLY} is not served where each stage is a model; ask for {FULL}")
        return _Request(received.hidden, received.tickets, entries, stacks, received.words, received.mates)

    def _jobs(self, request: _Request, respond: RespondRequest) -> Sequence[Job]:
        stacks = [self._stacks.of(key) for key in request.stacks]
        for stack, ticket in zip(stacks, request.tickets, strict=True):
            stack.require_row(ticket.num_tokens, request.hidden.shape[-1])
        open_request = OpenRequest(len(request.tickets), respond)
        # Rows get the engine's dtype when they are packed, all at once.
        hidden_rows = unfold_rows(request.hidden, [ticket.num_tokens for ticket in request.tickets])
        words = list(map(brought_words, request.entries, request.tickets, request.words))
        jobs = [
            Job(
                entry=request.entries[number],
                hidden=row,
                truncated=ticket.truncated,
                deadline_us=ticket.deadline_us,
                respond=open_request.row(number),
                words=brought.words,
                marks=brought.marks,
                middle=ticket.middle,
                exact=ticket.exact,
                computing_us=ticket.computing_us,
                level=ticket.level,
                lacks_ladder=self._settings.stage is not None or self._host_bank.lacks_ladder(ticket.hplm_key),
                is_canary=ticket.is_canary,
                is_wanted=open_request.is_open,
                mates=request.mates[number],
            )
            for number, (ticket, row, brought) in enumerate(zip(request.tickets, hidden_rows, words, strict=True))
        ]
        for job in jobs:
            if job.level == AUTO and self.audit.has_failed(job.hplm_key):
                job.go_all_the_way()
        for stack, job in {job.hplm_key: (stack, job) for stack, job in zip(stacks, jobs, strict=True)}.values():
            if not stack.holds(job):
                self._host_bank.prefetch(job.entry)
        return jobs

    def _build(self, key: StackKey) -> Stack:
        with read_errors_are_clear(self._home.root(key.root)):
            stack = self._builder.build(key)
            self._costs.forget(key)  # of a stack that is cut they are those of its slowest stage, which is known now
            self._costs.of(key)
            return stack

    def _forget(self, key: StackKey) -> None:
        self.admission.no_longer_serves(key)
        self._costs.forget(key)
        self._cuts.release(key)


def _mates_of(settings: StackSettings, loop: ServeLoop) -> MateGathering | None:
    """Return what brings rows of the stage before together; None where they come from `hplm_lower`."""
    return MateGathering(loop.go_on, StageRows(settings.stage)) if settings.stage else None
