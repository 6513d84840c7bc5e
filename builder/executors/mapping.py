"""A map over independent chunks: builders are written once, their callers say where the chunks run.

Usage:
    for counted in parallel_map(CountChunk(root_folder), chunks):
        ...
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Protocol, TypeVar

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
Pending = TypeVar("Pending")


class ParallelMap(Protocol):
    """Applies a function to chunks, lazily; the results come in the order of the chunks.

    The function is a picklable object of a module's top level. It is unpickled once per process, so what it loads and
    keeps on itself (a `cached_property`) serves all chunks of that process.
    """

    def __call__(self, function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]: ...


def map_here(function: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
    """Map in this process."""
    return map(function, chunks)


def in_order(
    submit: Callable[[Chunk], Pending], wait: Callable[[Pending], Result], chunks: Iterable[Chunk], in_flight: int
) -> Iterator[Result]:
    """Yield results in order, with at most `in_flight` chunks handed out: a corpus never piles up in memory."""
    pending: deque[Pending] = deque()
    for chunk in chunks:
        pending.append(submit(chunk))
        if len(pending) >= in_flight:
            yield wait(pending.popleft())
    while pending:
        yield wait(pending.popleft())


def apply_pickled(function: bytes, chunk: Any) -> Any:
    """Apply a function in the other process; module-level, so that every kind of executor can name it."""
    return _unpickled(function)(chunk)


@lru_cache(maxsize=1)
def _unpickled(function: bytes) -> Callable[[Any], Any]:
    unpickled: Callable[[Any], Any] = pickle.loads(function)
    return unpickled
