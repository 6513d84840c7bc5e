"""The cold-start queue: requests for roots that are still loading. They do not delay the requests for other roots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from backends.engine.loaded_stacks import LoadedStacks
from backends.scheduling.rejection import root_loading
from backends.stack_key import StackKey

Submit = Callable[[], None]
"""Queues a request, or answers it with its error; raises nothing."""


class ColdStartQueue:
    """Requests by loading stack. A thread loads each stack, then submits the requests that wait for it."""

    def __init__(self, stacks: LoadedStacks, max_rows: int) -> None:
        self._stacks = stacks
        self._max_rows = max_rows
        self._num_rows = 0
        self._waiting: dict[StackKey, list[tuple[int, Submit]]] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def add(self, key: StackKey, num_rows: int, submit: Submit) -> None:
        """Submit a request once its stack is there, or has turned out to be unusable.

        Raises:
            RejectedError: The queue is full.
        """
        with self._lock:
            if self._num_rows + num_rows > self._max_rows:
                raise root_loading(self._num_rows)
            self._begin(key)
            self._num_rows += num_rows
            self._waiting[key].append((num_rows, submit))

    def begin(self, key: StackKey) -> None:
        """Load a stack for requests that do not wait."""
        with self._lock:
            self._begin(key)

    def close(self) -> None:
        """Return once all requests are submitted."""
        for thread in self._threads:
            thread.join()

    def _begin(self, key: StackKey) -> None:
        if key in self._waiting:
            return
        thread = threading.Thread(target=self._load, args=(key,), name="load-root", daemon=True)
        thread.start()  # before a request counts on it: a process may have no more threads
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        self._waiting[key] = []

    def _load(self, key: StackKey) -> None:
        with suppress(Exception):  # each request meets the error when it is submitted
            self._stacks.of(key)
        with self._lock:
            waiting = self._waiting.pop(key)
            self._num_rows -= sum(num_rows for num_rows, _ in waiting)
        for _, submit in waiting:
            submit()
