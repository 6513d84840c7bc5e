"""Settings of making a root's students."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict

from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from backends.root.student_shape import CHAINED, PARALLEL, StudentShape, Wiring, require_wiring
from backends.student_levels import MOST_STUDENTS
from builder.settings.seeds import require_seed

_USUAL_STUDENTS = 3
_LARGEST_SHARE = 0.75
"""Students that cost more of the upper layers than that save too little."""
_ROUNDING = 1e-9
_OF_LEARNING = (
    "steps",
    "tokens_per_batch",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
    "clip_norm",
    "stacking_weight",
    "joint_share",
    "hard_share",
    "hard_texts",
    "checkpoint_every",
)


@dataclass(frozen=True)
class StudentSettings:
    """The number, the depth and the width of students, how they are wired, and how long and how they learn.

    In a chain a student reads what the one before computed, and together they are the root's first upper layers;
    `parallel` ones all read the root's hidden rows, and add up. Answers by a chain measure better.

    Without a `count`, there are as many students as lower the error on held-out texts by more than `least_gain` of
    itself, and cost no more than three quarters of the upper layers together. Without a `width` they are as wide as the
    root's hidden rows; narrower ones begin with a map into their own width.

    A chain as wide as the hidden rows learns nothing; a narrow one learns together, `steps` for each student. In
    parallel each learns for `steps`, then all of them together for `joint_share` as many. Of the batches of later ones,
    `hard_share` are drawn from the `hard_texts` share of texts that those before them say worst; by default none are,
    which measures better. `stacking_weight` is how much it counts that the middle of a later student says what all
    earlier ones say; students of one layer have no middle.

    `pair_share` of the texts are made into pairs, since some tasks are about them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=False, extra="forbid")

    count: int | None = None
    layers: int | None = None
    width: int | None = None
    wiring: Wiring = CHAINED
    steps: int = 700
    tokens_per_batch: int = 2048
    learning_rate: float = 2e-3
    warmup_steps: int = 40
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    stacking_weight: float = 1.0
    joint_share: float = 0.1
    least_gain: float = 0.05
    hard_share: float = 0.0
    hard_texts: float = 0.2
    pair_share: float = 0.3
    max_texts: int = 10_000
    seed: int = 17
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        for name in ("steps", "tokens_per_batch", "learning_rate", "clip_norm", "max_texts", "checkpoint_every"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("warmup_steps", "weight_decay", "stacking_weight"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"{name} cannot be negative")
        for name in ("joint_share", "least_gain", "hard_share", "hard_texts", "pair_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgumentError(f"{name} must lie between 0 and 1, not at {getattr(self, name)}")
        if self.count is not None and not 1 <= self.count <= MOST_STUDENTS:
            raise InvalidArgumentError(f"a root has 1 to {MOST_STUDENTS} students, not {self.count}")
        if self.layers is not None and self.layers < 1:
            raise InvalidArgumentError(f"a student has at least one layer, not {self.layers}")
        if self.width is not None and self.width < 1:
            raise InvalidArgumentError(f"a student is at least one number wide, not {self.width}")
        require_wiring(self.wiring)
        require_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """Return the settings that count, without those that older releases lack where these made the same.

        Checksums of it name what was made.
        """
        found, since = asdict(self), {"width": None, "wiring": PARALLEL}
        unused = () if self.learns else _OF_LEARNING
        return {
            name: value
            for name, value in found.items()
            if name not in unused and (name not in since or value != since[name])
        }

    @property
    def learns(self) -> bool:
        """Whether students learn at all, as far as that shows without their root."""
        return self.wiring == PARALLEL or self.width is not None

    def shape(self, root: RootGeometry) -> StudentShape:
        """Return the sizes of the largest set that is made for a root.

        Raises:
            InvalidArgumentError: The students do not fit the root, or cost as much as its upper layers.
        """
        num_upper = root.num_upper_layers
        layers = self.layers or (1 if num_upper < 4 else 2)
        width = root.hidden_size if self.width is None else self.width
        depth = StudentShape(1, layers, width, self.wiring).depth(root)
        if depth >= 1:
            raise InvalidArgumentError(
                f"a student of {layers} layers saves nothing where there are {num_upper} upper layers"
            )
        if self.count is None:
            affordable = int(_LARGEST_SHARE / depth + _ROUNDING)
            return StudentShape(min(max(1, affordable), _USUAL_STUDENTS), layers, width, self.wiring)
        if self.count * depth > 1 + _ROUNDING:
            raise InvalidArgumentError(
                f"{self.count} students of {layers} layers cost more than the {num_upper} upper layers"
            )
        return StudentShape(self.count, layers, width, self.wiring)
