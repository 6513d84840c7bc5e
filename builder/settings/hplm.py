"""Settings of tuning an hPLM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from backends.adapters.adapter_set import LORA_MODULES, SITES
from backends.adapters.recipe import AdapterRecipe
from backends.errors import InvalidArgumentError
from builder.settings.seeds import require_seed

Pooling = Literal["cls", "mean"]
ClassWeights = Literal["none", "balanced"]

LORA_EVERYWHERE = AdapterRecipe(bottleneck_sites=(), lora_modules=LORA_MODULES, rank=16, norm_sites=SITES)
"""LoRA on every linear layer, with LayerNorms of its own: learns in a few epochs what bottlenecks do not in many."""


_LARGEST_WEIGHT = 1000
TEACHING = frozenset(("distil_weight", "states_weight", "temperature"))
"""Settings that count where there is a teacher only."""
TAUGHT_EPOCHS = 2
"""The default with a teacher, whose texts are up to six times as many as the examples."""


@dataclass(frozen=True)
class TuneSettings:
    """The defaults suit a few hundred to a few thousand texts.

    Every epoch is measured, and the best one kept. `patience` is how many epochs without a better dev result end the
    tuning; by default none do, since the learning rate falls to nothing only in the last one. `ema_decay` above 0 keeps
    a running average of the weights instead of the last ones. Where there is a teacher, `distil_weight` is how much its
    answers count against the labels, which it has learned itself, and `states_weight` how much it counts besides that
    the head reads what the teacher's reads.
    """

    recipe: AdapterRecipe = LORA_EVERYWHERE
    pooling: Pooling = "mean"
    epochs: int = 8
    rows_per_batch: int = 32
    learning_rate: float = 2e-3
    head_learning_rate: float | None = None
    weight_decay: float = 0.01
    label_smoothing: float = 0.05
    dropout: float = 0.0
    class_weights: ClassWeights = "none"
    patience: int | None = None
    ema_decay: float = 0.0
    distil_weight: float = 1.0
    states_weight: float = 1.0
    temperature: float = 1.0
    seed: int = 17

    def __post_init__(self) -> None:
        rates = [self.learning_rate, self.temperature]
        rates += [] if self.head_learning_rate is None else [self.head_learning_rate]
        for name in ("epochs", "rows_per_batch", "patience", "learning_rate", "head_learning_rate", "temperature"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidArgumentError(f"{name} must be positive, not {value}")
        if (
            not all(math.isfinite(rate) for rate in rates)
            or self.learning_rate > 1
            or (self.head_learning_rate or 0) > 1
        ):
            raise InvalidArgumentError("learning rates must be at most 1, the temperature a finite number")
        require_seed(self.seed)
        for name in ("weight_decay", "label_smoothing", "dropout", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not 0 <= self.distil_weight <= 1:
            raise InvalidArgumentError(f"distil_weight must be 0 to 1, not {self.distil_weight}")
        if not 0 <= self.states_weight <= _LARGEST_WEIGHT:
            raise InvalidArgumentError(f"states_weight must be 0 to {_LARGEST_WEIGHT}, not {self.states_weight}")
        for name, known in (("pooling", get_args(Pooling)), ("class_weights", get_args(ClassWeights))):
            if getattr(self, name) not in known:
                raise InvalidArgumentError(f"{name} {getattr(self, name)!r} is not one of {', '.join(known)}")

    @classmethod
    def defaults(cls, is_taught: bool) -> TuneSettings:
        """The settings of a tuning that names none."""
        return cls(epochs=TAUGHT_EPOCHS) if is_taught else cls()

    @property
    def balances_classes(self) -> bool:
        return self.class_weights == "balanced"

    def changed(self, changes: Mapping[str, Any]) -> TuneSettings:
        """These settings with some replaced, as JSON holds them; `recipe` may itself name only what it replaces."""
        merged = {**asdict(self), **changes}
        if isinstance(recipe := changes.get("recipe"), Mapping):
            merged["recipe"] = {**asdict(self.recipe), **recipe}
        try:
            return _adapter().validate_json(to_json(merged), strict=True, extra="forbid")
        except PydanticSerializationError as error:
            raise InvalidArgumentError("a setting of the tuning has text that is not UTF-8, or no JSON") from error
        except ValidationError as error:
            raise InvalidArgumentError(_first_problem(error)) from error


@cache
def _adapter() -> TypeAdapter[TuneSettings]:
    return TypeAdapter(TuneSettings)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "unexpected_keyword_argument":
        known = fields(AdapterRecipe if len(problem["loc"]) > 1 else TuneSettings)
        return f"tuning setting {name!r} is unknown; known are {', '.join(field.name for field in known)}"
    return f"tuning setting {name!r} cannot be {str(problem['input'])[:80]!r}: {problem['msg']}"
