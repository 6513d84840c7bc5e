"""What `hplm_upper` does: hidden rows become jobs, jobs' answers become responses."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from json import JSONEncoder

import torch

from backends.adapters.bank import HplmArtifact
from backends.adapters.host_bank import HostBank
from backends.engine.costs import EngineCosts
from backends.engine.crew import Crew
from backends.engine.job import Answer, IsCancelled, Job, Respond, never
from backends.engine.loading import Loading
from backends.engine.loop import PipelineSettings, ServeLoop
from backends.engine.newcomers import Newcomers
from backends.engine.settings import EngineSettings
from backends.engine.stack import StackSettings
from backends.engine.stacks import Stacks
from backends.engine.telling import Telling
from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.admission import Admission
from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.choice import policy_of
from backends.scheduling.outlook import Outlook
from backends.scheduling.policy import Capacity
from backends.scheduling.refusal import Refusal, RefusedError
from backends.scheduling.settings import PolicySettings
from backends.trace import Lane, span
from backends.wire import Float16Array, Int64Array, decode_tickets, decode_words, unfold_rows

LOGGER = logging.getLogger(__name__)

# One encoder for all answers: making one costs more than most answers.
_encode = JSONEncoder(ensure_ascii=False).encode

Answered = list[bytes] | HplmError
RespondRequest = Callable[[Answered], None]
"""Gets one JSON object per row of the request, or the request's error; called once, from any thread."""


@dataclass(frozen=True)
class HiddenRows:
    """A request as the lower half has sent it; the tensors may be Triton's own memory.

    Shape:
        hidden: `[B, ceil(T / B), H]` (see `fold_rows`); tickets: `[B, 6]`; words: B.
    """

    hidden: Float16Array
    tickets: Int64Array
    words: Sequence[bytes]


class _OpenRequest:
    """Collects the answers of a request's rows; the first error, or the last answer, closes it."""

    def __init__(self, num_rows: int, respond: RespondRequest) -> None:
        self._answers: dict[int, bytes] = {}
        self._num_rows = num_rows
        self._respond = respond
        self._open = True
        self._lock = threading.Lock()

    def row(self, number: int) -> Respond:
        return lambda answer: self._add(number, answer)

    def _add(self, number: int, answer: Answer | HplmError) -> None:
        with self._lock:
            if not self._open:
                return
            if not isinstance(answer, HplmError):
                self._answers[number] = _encode(answer).encode()
                if len(self._answers) < self._num_rows:
                    return
            self._open = False
        if isinstance(answer, HplmError):
            self._respond(answer)
        else:
            self._respond([self._answers[place] for place in range(self._num_rows)])


class UpperService:
    """The stacks of all roots on one device, and the loop that runs them.

    `threads` compute; None for as many as PyTorch would take here.
    """

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        settings: StackSettings,
        capacity: Capacity,
        admission: AdmissionSettings = AdmissionSettings(),
        pipeline: PipelineSettings = PipelineSettings(),
        policy: PolicySettings = PolicySettings(),
        on_load: Callable[[Outlook, int], None] | None = None,
        threads: int | None = None,
    ) -> None:
        self._host_bank = HostBank(home, snapshot.knows)
        self._snapshot = snapshot
        threads = torch.get_num_threads() if threads is None else threads
        self._costs = EngineCosts(home, EngineSettings(settings, capacity, threads))
        chooser = policy_of(policy, lambda root: self._costs.of(root).model)
        self.admission = Admission(self._costs.of, capacity, admission, chooser.order)
        self.refusals: Counter[Refusal] = Counter()
        self._counting = threading.Lock()
        self._telling = Telling()
        self._crew = Crew(threads, torch.device(settings.device))
        self._stacks = Stacks(home, settings, self._crew, self._costs, self.admission.serves)
        self._stacks.load({entry.domain.root for entry in snapshot.live()})
        self._newcomers = Newcomers(self._stacks, admission.max_waiting)
        snapshot.prepare_with(lambda domain: self._stacks.of(domain.root))
        loading = Loading(self._stacks.of, self._load)
        self._loop = ServeLoop(loading, chooser, capacity, self.admission, pipeline, on_load)

    def submit(
        self,
        hidden: Float16Array,
        tickets: Int64Array,
        words: Sequence[bytes],
        respond: RespondRequest,
        is_cancelled: IsCancelled = never,
    ) -> None:
        """Queue a request's rows. The tensors are copied, so the caller's memory is free at once.

        Rows of a root that is not loaded yet wait for that in another thread, not in the caller's, which brings the
        requests to all the others.
        """
        respond = self._counted(self._told_aside(respond))
        try:
            root = self._missing_root(tickets)
            if root is None:
                self._queue(hidden, tickets, words, respond, is_cancelled)
            else:
                own = (hidden.copy(), tickets.copy(), list(words))
                self._newcomers.add(
                    root, len(words), lambda: self._queue(*own, respond, is_cancelled, came_straight=False)
                )
        except Exception as error:
            respond(presentable(error))

    def _missing_root(self, tickets: Int64Array) -> str | None:
        keys = {ticket.hplm_key for ticket in decode_tickets(tickets)}
        roots = (self._snapshot.by_key(key).domain.root for key in keys)
        return next((root for root in roots if not self._stacks.holds(root)), None)

    def _queue(
        self,
        hidden: Float16Array,
        tickets: Int64Array,
        words: Sequence[bytes],
        respond: RespondRequest,
        is_cancelled: IsCancelled,
        came_straight: bool = True,
    ) -> None:
        try:
            with span(Lane.QUEUE, "accept", rows=len(words)):
                jobs = self._jobs(hidden, tickets, words, respond, is_cancelled)
            self._loop.submit(jobs, came_straight)
        except Exception as error:
            respond(presentable(error))

    def run(self, requests: Sequence[HiddenRows | HplmError]) -> list[Answered]:
        """Answer a batch that somebody else has formed; returns once all of it is answered.

        Its rows are queued together, so they run as one batch: in parts only where they exceed the capacity or the
        slots, or are of several roots. A request that could not be read comes in as its error and goes out as it.
        """
        answered: list[Future[Answered]] = [Future() for _ in requests]
        accepted: list[Sequence[Job]] = []
        with span(Lane.QUEUE, "accept", requests=len(requests)):
            for request, future in zip(requests, answered, strict=True):
                if isinstance(request, HplmError):
                    future.set_result(request)
                    continue
                try:
                    respond = self._counted(future.set_result)
                    accepted.append(self._jobs(request.hidden, request.tickets, request.words, respond, never))
                except Exception as error:
                    future.set_result(presentable(error))
        self._loop.submit_together(accepted)
        return [future.result() for future in answered]

    def linger(self) -> None:
        """Take nothing in for a moment, while a batch runs and the next one is not about to be chosen.

        What comes meanwhile is handed over at once, which costs less than one by one.
        """
        self._loop.linger()

    def close(self) -> None:
        self._newcomers.close()
        self._loop.close()
        self._telling.close()
        self._crew.close()

    def _counted(self, respond: RespondRequest) -> RespondRequest:
        def respond_and_count(answers: list[bytes] | HplmError) -> None:
            if isinstance(answers, RefusedError):
                with self._counting:
                    self.refusals[answers.reason] += 1
            respond(answers)

        return respond_and_count

    def _told_aside(self, respond: RespondRequest) -> RespondRequest:
        """Answers are sent by whoever has them, errors by a thread of their own."""

        def respond_or_tell(answers: Answered) -> None:
            if isinstance(answers, HplmError):
                self._telling.tell(respond, answers)
            else:
                respond(answers)

        return respond_or_tell

    def _jobs(
        self,
        hidden: Float16Array,
        ticket_rows: Int64Array,
        words: Sequence[bytes],
        respond: RespondRequest,
        is_cancelled: IsCancelled,
    ) -> Sequence[Job]:
        tickets = decode_tickets(ticket_rows)
        if not tickets:
            raise InvalidArgumentError("a request has at least one row")
        entries = [self._snapshot.by_key(ticket.hplm_key) for ticket in tickets]
        for entry, ticket in zip(entries, tickets, strict=True):
            stack = self._stacks.of(entry.domain.root)
            stack.require_row(ticket.num_tokens, hidden.shape[-1])
        self._host_bank.let_go()
        for entry in {entry.key: entry for entry in entries}.values():
            if not self._stacks.of(entry.domain.root).slots.holds(entry.key):
                self._host_bank.announce(entry)
        request = _OpenRequest(len(tickets), respond)
        # Out of the caller's memory; rows get the engine's dtype when they are packed, all at once.
        hidden_rows = unfold_rows(hidden.copy(), [ticket.num_tokens for ticket in tickets])
        return [
            Job(
                entry=entries[number],
                hidden=row,
                truncated=ticket.truncated,
                deadline_us=ticket.deadline_us,
                respond=request.row(number),
                words=decode_words(words_row) if words_row else None,
                middle=ticket.middle,
                read_us=ticket.read_us,
                is_cancelled=is_cancelled,
            )
            for number, (ticket, row, words_row) in enumerate(zip(tickets, hidden_rows, words, strict=True))
        ]

    def _load(self, entry: HplmEntry) -> HplmArtifact:
        stack = self._stacks.of(entry.domain.root)
        return self._host_bank.artifact(entry, stack.fingerprint, stack.hidden_size)
