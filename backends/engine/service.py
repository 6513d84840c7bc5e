"""What `hplm_upper` does: hidden rows become jobs, jobs' answers become responses."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.engine.job import Answer, Job, Respond
from backends.engine.loop import DEFAULT_MAX_WAITING, ServeLoop
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import HplmError, presentable
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder
from backends.scheduling.policy import Capacity, FirstComeFirstServed
from backends.wire import Half, Int64, decode_tickets, unfold_rows

LOGGER = logging.getLogger(__name__)

RespondRequest = Callable[[list[bytes] | HplmError], None]
"""Gets one JSON object per row of the request, or the request's error; called once, from any thread."""


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
                self._answers[number] = json.dumps(answer, ensure_ascii=False).encode()
                if len(self._answers) < self._num_rows:
                    return
            self._open = False
        if isinstance(answer, HplmError):
            self._respond(answer)
        else:
            self._respond([self._answers[place] for place in range(self._num_rows)])


class UpperService:
    """The stacks of all roots on one device, and the loop that runs them."""

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        settings: StackSettings,
        capacity: Capacity,
        max_waiting: int = DEFAULT_MAX_WAITING,
    ) -> None:
        self._home = home
        self._snapshot = snapshot
        self._settings = settings
        self._stacks: dict[str, UpperStack] = {}
        self._load_stacks({entry.domain.root for entry in snapshot.live()})
        self._loop = ServeLoop(self._stack, self._load, FirstComeFirstServed(), capacity, max_waiting)

    def submit(self, hidden: Half, tickets: Int64, respond: RespondRequest) -> None:
        """Queue a request's rows. The tensors are copied, so the caller's memory is free at once."""
        try:
            jobs = self._jobs(np.array(hidden), tickets, respond)
        except Exception as error:
            respond(presentable(error))
        else:
            self._loop.submit(jobs)

    def close(self) -> None:
        self._loop.close()

    def _jobs(self, hidden: Half, rows: Int64, respond: RespondRequest) -> Sequence[Job]:
        tickets = decode_tickets(rows)
        entries = [self._snapshot.by_key(ticket.hplm_key) for ticket in tickets]
        for entry, ticket in zip(entries, tickets, strict=True):
            self._stack(entry.domain.root).require_row(ticket.num_tokens, hidden.shape[-1])
        request = _OpenRequest(len(tickets), respond)
        hidden_rows = unfold_rows(hidden, [ticket.num_tokens for ticket in tickets])
        return [
            Job(
                entry=entries[number],
                hidden=torch.from_numpy(row),
                truncated=ticket.truncated,
                deadline_us=ticket.deadline_us,
                respond=request.row(number),
            )
            for number, (ticket, row) in enumerate(zip(tickets, hidden_rows, strict=True))
        ]

    def _load_stacks(self, roots: set[str]) -> None:
        """Load what is live now. A root that fails is an error of its own tenants, unless none is left to serve."""
        failures: list[Exception] = []
        for root in sorted(roots):
            try:
                self._stack(root)
            except Exception as error:
                LOGGER.error("root %s cannot be served: %s", root, error)
                failures.append(error)
        if failures and not self._stacks:
            raise failures[0]

    def _stack(self, root: str) -> UpperStack:
        if root not in self._stacks:
            self._stacks[root] = UpperStack(RootFolder(self._home.root(root)), self._settings)
        return self._stacks[root]

    def _load(self, entry: HplmEntry) -> HplmArtifact:
        return read_artifact(self._home.path / entry.folder, self._stack(entry.domain.root).fingerprint)
