"""The parallel map over processes of this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from backends.errors import InvalidArgumentError, UnavailableError
from builder.executors.mapping import Chunk, ParallelMap, Result, apply_pickled, in_order, map_here

_CHUNKS_PER_PROCESS = 2
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ProcessMap:
    """Chunks run in `processes` fresh processes, one thread each; none of them outlives the caller."""

    processes: int

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise InvalidArgumentError(f"a map needs at least one process, not {self.processes}")

    def __call__(self, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        pickled = pickle.dumps(function)
        # Not fork: the threads of PyTorch and of the tokenizer do not survive it.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.processes, context, _start_process, (os.getpid(),))

        def submit(chunk: Chunk) -> Future[Result]:
            return pool.submit(apply_pickled, pickled, chunk)

        try:
            yield from in_order(submit, Future.result, chunks, _CHUNKS_PER_PROCESS * self.processes)
        except BrokenProcessPool as error:
            raise UnavailableError(
                "a process of a parallel step was killed; the build goes on when repeated"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def local_map(processes: int) -> ParallelMap:
    """The map for this machine: no process of its own for one."""
    return map_here if processes == 1 else ProcessMap(processes)


def _start_process(parent: int) -> None:
    """In the new process: end with the parent, kill -9 included, and leave the other cores to the others."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    if torch := sys.modules.get("torch"):  # too late for the variable
        torch.set_num_threads(1)
