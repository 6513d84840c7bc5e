"""Requests to roots that are not loaded yet: they wait for that beside the thread that brings all the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from backends.engine.stacks import Stacks
from backends.scheduling.refusal import Refusal, RefusedError

TakeIn = Callable[[], None]
"""Queues a request, or answers it with what is wrong; raises nothing."""


class Newcomers:
    """Each root is loaded in a thread of its own, which then takes in those that have come for it."""

    def __init__(self, stacks: Stacks, most_rows: int) -> None:
        self._stacks = stacks
        self._most_rows = most_rows
        self._num_rows = 0
        self._waiting: dict[str, list[tuple[int, TakeIn]]] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def add(self, root: str, num_rows: int, take_in: TakeIn) -> None:
        """Have it taken in once its root is there, or has turned out to be unusable.

        Raises:
            RefusedError: As many rows wait as may.
        """
        with self._lock:
            if self._num_rows + num_rows > self._most_rows:
                raise RefusedError(Refusal.QUEUE_FULL, f"the root is being loaded, and {self._num_rows} rows wait")
            if root not in self._waiting:
                thread = threading.Thread(target=self._load, args=(root,), name="load-root", daemon=True)
                thread.start()  # before anybody counts on it: a process may have no more threads
                self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            self._num_rows += num_rows
            self._waiting.setdefault(root, []).append((num_rows, take_in))

    def close(self) -> None:
        """Wait until all that have come are taken in."""
        for thread in self._threads:
            thread.join()

    def _load(self, root: str) -> None:
        with suppress(Exception):  # each of them is told when it is taken in
            self._stacks.of(root)
        with self._lock:
            waiting = self._waiting.pop(root)
            self._num_rows -= sum(num_rows for num_rows, _ in waiting)
        for _, take_in in waiting:
            take_in()
