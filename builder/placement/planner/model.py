"""What is placed: a root's upper half at one level, with what it takes in time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from backends.errors import InvalidArgumentError, shown
from backends.stack_key import FULL


@dataclass(frozen=True)
class Model:
    """A root's upper half at one level, as it is placed.

    Attributes:
        halves_us: What a batch of one row takes in each half layer.
        halves_bytes: Weights and adapter slots of each half layer.
        busy_share: The share of that time for which a row occupies a device, where batches are full; 1 without batches.
        full_batch_us: What a full batch takes; others wait for it.
    """

    root: str
    halves_us: tuple[int, ...]
    halves_bytes: tuple[int, ...]
    busy_share: float = 1.0
    full_batch_us: int = 0
    level: str = FULL

    def __post_init__(self) -> None:
        if not 0 < self.busy_share <= 1:
            raise InvalidArgumentError(
                f"a row of {shown(self.root)} occupies a device for {self.busy_share} of its time"
            )

    @property
    def name(self) -> str:
        return self.root if self.level == FULL else f"{self.root}/{self.level}"

    @property
    def alone_us(self) -> int:
        return sum(self.halves_us)

    @property
    def busy_us(self) -> float:
        """The time of a device that a row takes."""
        return self.busy_share * self.alone_us

    @property
    def size_bytes(self) -> int:
        return sum(self.halves_bytes)
