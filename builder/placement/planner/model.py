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
        full_rows: Rows of a full batch; 1 without batches.
        full_batch_us: What a full batch takes; others wait for it.
    """

    root: str
    halves_us: tuple[int, ...]
    halves_bytes: tuple[int, ...]
    full_rows: int = 1
    full_batch_us: int = 0
    level: str = FULL

    def __post_init__(self) -> None:
        if self.full_rows < 1 or (self.full_rows > 1 and self.full_batch_us < 1):
            raise InvalidArgumentError(
                f"a full batch of {shown(self.root)} has {self.full_rows} rows and takes {self.full_batch_us} us"
            )

    @property
    def name(self) -> str:
        return self.root if self.level == FULL else f"{self.root}/{self.level}"

    @property
    def alone_us(self) -> int:
        return sum(self.halves_us)

    @property
    def busy_us(self) -> float:
        """The time of a device that a row takes where batches are full; not more than it takes alone."""
        return self.alone_us if self.full_rows == 1 else min(self.alone_us, self.full_batch_us / self.full_rows)

    @property
    def further_share(self) -> float:
        """What a further row of a batch takes, of what a row takes alone."""
        if self.full_rows == 1 or not self.alone_us:
            return 0.0
        return min(1.0, max(0.0, (self.full_batch_us / self.alone_us - 1) / (self.full_rows - 1)))

    @property
    def size_bytes(self) -> int:
        return sum(self.halves_bytes)
