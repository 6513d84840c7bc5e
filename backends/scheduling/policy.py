"""What runs next: the interface of all policies, and first-come-first-served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from backends.errors import InvalidArgumentError


@dataclass(frozen=True)
class Capacity:
    """What one batch may hold at most. A single job is always let in, however long it is."""

    max_rows: int = 64
    max_tokens: int = 4096
    max_adapters: int = 64

    def __post_init__(self) -> None:
        if min(self.max_rows, self.max_tokens, self.max_adapters) < 1:
            raise InvalidArgumentError("a batch must have room for one row, one token and one adapter")


class Waiting(Protocol):
    """What a policy sees of a job."""

    @property
    def root(self) -> str: ...
    @property
    def hplm_key(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def deadline_us(self) -> int | None: ...


class Policy(Protocol):
    def select(self, waiting: Sequence[Waiting], now_us: int, capacity: Capacity) -> list[int]:
        """Indices into `waiting` of the next batch, all of one root; empty only if nothing waits."""
        ...


class FirstComeFirstServed:
    """The oldest job's root runs, with as many of that root's jobs, oldest first, as fit."""

    def select(self, waiting: Sequence[Waiting], now_us: int, capacity: Capacity) -> list[int]:
        chosen: list[int] = []
        adapters: set[int] = set()
        tokens = 0
        for index, job in enumerate(waiting):
            if job.root != waiting[0].root:
                continue
            adapters.add(job.hplm_key)
            tokens += job.num_tokens
            if chosen and (tokens > capacity.max_tokens or len(adapters) > capacity.max_adapters):
                break
            chosen.append(index)
            if len(chosen) == capacity.max_rows:
                break
        return chosen
