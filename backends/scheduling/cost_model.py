"""What a batch is expected to take: the one cost model that scheduler, admission, plugin and simulator read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from backends.errors import InvalidArgumentError
from backends.fields import Fields
from backends.stack_key import FULL

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from backends.scheduling.waiting_room import Waiting

Number = TypeVar("Number", float, "npt.NDArray[np.float64]")


@dataclass(frozen=True)
class BatchShape:
    """All that the cost of a batch depends on."""

    rows: int
    tokens: float
    """Each as far as it passes the layers; so are the squares."""
    squared_lengths: float
    adapters: int
    depth: float = 1.0
    """Share of the layers that its deepest row passes: what a batch takes anyway, it takes for each layer."""

    @classmethod
    def of(cls, jobs: Sequence[Waiting], depths: Sequence[float] | None = None) -> BatchShape:
        """Add up jobs, at the depths that they are likely to pass, or at those that they pass."""
        deepest = _likely_deepest(jobs) if depths is None else _deepest(jobs, depths)
        depths = [job.depth for job in jobs] if depths is None else depths
        passed = [depth * job.num_tokens for depth, job in zip(depths, jobs, strict=True)]
        squares = sum(tokens * job.num_tokens for tokens, job in zip(passed, jobs, strict=True))
        return cls(len(jobs), sum(passed), squares, len({job.hplm_key for job in jobs}), deepest)


def _deepest(jobs: Sequence[Waiting], depths: Sequence[float]) -> float:
    """Return the share of the layers that the deepest row passes, with however few of its tokens."""
    return max(
        (1.0 if job.kept < 1.0 and job.exit_depth < depth else depth for job, depth in zip(jobs, depths, strict=True)),
        default=1.0,
    )


def _likely_deepest(jobs: Sequence[Waiting]) -> float:
    """Return the mean of the share that the deepest row passes: one that does not leave passes all layers.

    The number of students is chosen for all, so such rows pass what they are given.
    """
    leaving, all_leave = 0.0, 1.0
    for job in jobs:
        exit_depth = job.exit_depth if job.root.level == FULL else job.depth
        leaving = max(leaving, min(exit_depth, job.depth))
        if exit_depth < job.depth:
            all_leave *= 1 - min(1.0, (job.depth - exit_depth) / (job.kept * (1 - exit_depth)))
    return all_leave * leaving + (1 - all_leave)


@dataclass(frozen=True)
class CostModel:
    """A batch's latency in microseconds; linear in its shape, and the constant part in its depth."""

    constant_us: float
    per_row_us: float
    per_token_us: float
    per_squared_length_us: float
    per_adapter_us: float

    def __post_init__(self) -> None:
        # Not by `asdict`, whose copies take longer than all else: a model is made for each batch that is learned from.
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgumentError(
                    f"{name} of a cost model is {value}; no part of a batch takes less than none"
                )

    def predict_us(self, shape: BatchShape) -> float:
        return (
            self.constant_us * shape.depth
            + self.per_row_us * shape.rows
            + self.per_token_us * shape.tokens
            + self.per_squared_length_us * shape.squared_lengths
            + self.per_adapter_us * shape.adapters
        )

    def row_us(self, num_tokens: int, depth: float = 1.0) -> float:
        """What a row adds to a batch that runs anyway, adapters aside."""
        return self.rows_us(1, depth * num_tokens, depth * num_tokens * num_tokens)

    def rows_us(self, rows: int, tokens: Number, squared_lengths: Number) -> Number:
        """What rows add to batches that run anyway, adapters aside; for many numbers at once, if they are arrays."""
        return self.per_row_us * rows + self.per_token_us * tokens + self.per_squared_length_us * squared_lengths

    def scaled(self, factor: float) -> CostModel:
        return CostModel(**{name: factor * value for name, value in vars(self).items()})

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def read(cls, stored: Fields) -> CostModel:
        """Read what `to_json` gave; raises CorruptFileError where a part is missing or no number of 0 or more."""
        return cls(**{field.name: stored.number(field.name, 0.0) for field in fields(cls)})


OPTIMISTIC = CostModel(
    constant_us=200.0, per_row_us=2.0, per_token_us=0.5, per_squared_length_us=0.0, per_adapter_us=2.0
)
"""Below what any device takes: where nothing is known yet, no row is rejected that could be answered."""
