"""Settings of building a domain's version; importing this imports no library."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.errors import InvalidArgumentError
from builder.settings.seeds import require_seed

LOWER_STEPS = 150
HEAD_STEPS = 300
DOMAIN_THETA = 0.005
"""The share of a domain's fragments that it keeps unless told otherwise; see `bench.theta`."""
MAX_FRAGMENTS = 200_000


@dataclass(frozen=True)
class PlotSettings:
    """The fragments that a table keeps: the `theta` share of the most frequent, `max_fragments` at most."""

    theta: float = 1.0
    max_fragments: int | None = None
    max_bigrams: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.theta <= 1:
            raise InvalidArgumentError(
                f"theta is the share of fragments to keep, above 0 and at most 1, not {self.theta}"
            )
        for limit in (self.max_fragments, self.max_bigrams):
            if limit is not None and limit < 1:
                raise InvalidArgumentError("a table must be allowed at least one fragment")

    @property
    def max_learned(self) -> int | None:
        return None if self.max_fragments is None else self.max_fragments // 2


@dataclass(frozen=True)
class Pace:
    """The length and the strength of a training."""

    steps: int
    learning_rate: float
    tokens_per_batch: int = 1024
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    clip_norm: float = 1.0
    seed: int = 23
    checkpoint_every: int = 25

    def __post_init__(self) -> None:
        if min(self.steps, self.tokens_per_batch, self.checkpoint_every) < 1 or self.learning_rate <= 0:
            raise InvalidArgumentError("steps, tokens per batch and learning rate must be positive")
        require_seed(self.seed)


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of the lower layers' training and, once per root, the head's; the defaults take minutes on two cores.

    `anchor` weighs the distance from the first boundary states, in units of their variance, against the loss.
    """

    lower: Pace = field(default_factory=lambda: Pace(steps=LOWER_STEPS, learning_rate=3e-4))
    head: Pace = field(default_factory=lambda: Pace(steps=HEAD_STEPS, learning_rate=3e-3))
    anchor: float = 1.0

    def __post_init__(self) -> None:
        if self.anchor < 0:
            raise InvalidArgumentError(f"the anchor cannot be negative: {self.anchor}")
