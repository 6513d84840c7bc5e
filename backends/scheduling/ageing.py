"""What keeps jobs without a deadline from starving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.errors import InvalidArgumentError
from backends.scheduling.policy import Capacity

if TYPE_CHECKING:
    from backends.scheduling.waiting_room import Places, WaitingRoom

_PART = 4
"""One part in so many is theirs."""


@dataclass(frozen=True)
class Ageing:
    """A part of the batches belongs to jobs without a deadline that have waited for `patience_us`.

    Semantics:
        A job with a deadline ends by it, answered or refused. One without would wait for ever behind a stream of jobs
        that a policy prefers. Once it has waited for `patience_us` it is *aged*, and then
        - of each batch a quarter of the rows, tokens and adapters goes to aged jobs of its root first, oldest first,
          and at least to one of them, however long;
        - each fourth batch is of the root of the oldest aged job.
        So the oldest aged job runs in one of the next four batches, and jobs with deadlines keep three quarters.
    """

    patience_us: int = 1_000_000

    def __post_init__(self) -> None:
        if self.patience_us < 0:
            raise InvalidArgumentError(f"jobs without a deadline cannot age before they come: {self.patience_us} us")

    def aged(self, waiting: WaitingRoom[Any], now_us: int) -> Places:
        """Oldest first."""
        return waiting.places_without_deadline(arrived_by_us=now_us - self.patience_us)

    def chooses_root(self, waiting: WaitingRoom[Any]) -> bool:
        """Whether it is the turn of the oldest aged job's root, if there is one."""
        return waiting.batches_taken % _PART == 0

    def part_of(self, capacity: Capacity) -> Capacity:
        limits = (capacity.max_rows, capacity.max_tokens, capacity.max_adapters)
        return Capacity(*(max(1, limit // _PART) for limit in limits))
