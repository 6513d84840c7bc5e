"""The parallel map over processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Condition, Thread
from typing import Any

from backends.errors import InvalidArgumentError, UnavailableError
from builder.executors.mapping import Chunk, ParallelMap, Result, apply_pickled, in_order, map_here

_CHUNKS_PER_PROCESS = 2
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class ProcessMap:
    """Chunks run in `processes` fresh processes, one thread each.

    None of them outlives the caller, nor the iteration over the results.
    """

    processes: int

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise InvalidArgumentError(f"a map needs at least one process, not {self.processes}")

    def __call__(self, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        pickled = pickle.dumps(function)
        # Not fork: the threads of PyTorch and of the tokenizer do not survive it.
        context = multiprocessing.get_context("spawn")
        line, caller = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(self.processes, context, _start_process, (line, os.getpid()))

        def submit(chunk: Chunk) -> Future[Result]:
            return pool.submit(_apply, pickled, chunk)

        try:
            yield from in_order(submit, _result, chunks, _CHUNKS_PER_PROCESS * self.processes)
        except BrokenProcessPool as error:
            raise UnavailableError(
                "a process of a parallel step was killed; the build goes on when repeated"
            ) from error
        except BaseException:  # an error, Ctrl-C or a closed generator: results are no longer wanted
            caller.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            caller.close()
            line.close()


def _result(future: Future[Result]) -> Result:
    """Waits in short turns: a Ctrl-C that comes just before a wait begins is heard only when that wait ends."""
    while not future.done():
        wait([future], _LOOK_EVERY_S)
    return future.result()


def local_map(processes: int) -> ParallelMap:
    """The map for this machine: no process of its own for one."""
    return map_here if processes == 1 else ProcessMap(processes)


def _start_process(line: Connection, parent: int) -> None:
    """Prepare the new process: it ends when the caller hangs up or dies, and leaves the other cores to the others."""
    Thread(target=_end_with, args=(line, parent), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    if torch := sys.modules.get("torch"):  # too late for the variable
        torch.set_num_threads(1)


class _Work:
    """The work of this process, for the thread that may end it."""

    def __init__(self) -> None:
        self.is_under_way = False
        self.changed = Condition()


_work = _Work()


def _apply(function: bytes, chunk: Chunk) -> Any:
    with _work.changed:
        _work.is_under_way = True
        _work.changed.notify_all()
    try:
        return apply_pickled(function, chunk)
    finally:
        with _work.changed:
            _work.is_under_way = False


def _end_with(line: Connection, parent: int) -> None:
    """End this process when the line ends; nothing is ever sent on it.

    Only while a chunk is computed: the caller would wait for ever for the rest of a result that was cut off, and a
    process that has nothing to do is ended by the pool. Once the caller is dead, neither matters.
    """
    with suppress(EOFError, OSError):
        line.recv()
    with _work.changed:
        while not _work.changed.wait_for(lambda: _work.is_under_way, _LOOK_EVERY_S):
            if os.getppid() != parent:
                break
        os._exit(1)
