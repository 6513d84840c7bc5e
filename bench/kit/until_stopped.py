"""Work in a process of its own that goes on until it is told to stop, and tells its results through a pipe."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any, Self

from backends.errors import UnavailableError

_PATIENCE_S = 60.0
GoesOn = Callable[[], bool]
Tell = Callable[[Any], None]
Work = Callable[[GoesOn, Tell], None]
"""Asks its first argument whether to go on, and tells results by its second."""


class UntilStopped:
    """Runs `work`, which can be pickled, from `__enter__` to `__exit__`; it ends also with this process."""

    def __init__(self, work: Work) -> None:
        context = get_context("spawn")
        self._told, self._sender = context.Pipe(duplex=False)
        self._stopping = context.Event()
        self._process = context.Process(target=_run, args=(work, self._sender, self._stopping), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._sender.close()  # what is left of the pipe ends with the process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def told(self) -> list[Any]:
        """Return what was told since the last call; to be called now and then, lest the process waits for a reader.

        Raises:
            UnavailableError: The process has ended by itself.
        """
        if not self._process.is_alive():
            raise UnavailableError(f"the load has ended by itself, with code {self._process.exitcode}")
        results = []
        while self._told.poll():
            results.append(self._receive())
        return results

    def next_told(self) -> Any:
        """Wait for one result.

        Raises:
            UnavailableError: None comes.
        """
        if not self._told.poll(_PATIENCE_S):
            raise UnavailableError(f"the load told nothing for {_PATIENCE_S:g} s")
        return self._receive()

    def stop(self) -> None:
        """Have the work end, whose last results can still be read."""
        self._stopping.set()

    def _receive(self) -> Any:
        try:
            return self._told.recv()
        except EOFError as error:
            raise UnavailableError(f"the load has ended by itself, with code {self._process.exitcode}") from error


def _run(work: Work, sender: Connection, stopping: Event) -> None:
    parent = parent_process()
    work(lambda: not stopping.is_set() and parent is not None and parent.is_alive(), sender.send)
