"""How an hPLM is tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from backends.adapters.adapter_set import LORA_MODULES, SITES
from backends.adapters.recipe import AdapterRecipe
from backends.errors import InvalidArgumentError
from builder.settings.seeds import require_seed

Pooling = Literal["cls", "mean"]
ClassWeights = Literal["none", "balanced"]
SettingsT = TypeVar("SettingsT", "TuneSettings", AdapterRecipe)

LORA_EVERYWHERE = AdapterRecipe(bottleneck_sites=(), lora_modules=LORA_MODULES, rank=16, norm_sites=SITES)
"""On every linear layer, with LayerNorms of its own: learns in a few epochs what bottlenecks do not learn in many."""


_LARGEST_WEIGHT = 1000
TEACHING = frozenset(("distil_weight", "states_weight", "temperature"))
"""Settings that count where there is a teacher only."""


@dataclass(frozen=True)
class TuneSettings:
    """The defaults suit a few hundred to a few thousand texts.

    `patience` is how many epochs without a better dev result end it. `ema_decay` above 0 keeps a running average of the
    weights instead of the last ones. Where there is a teacher, `distil_weight` is how much its answers count
    against the labels, which it has learned itself, and `states_weight` how much it counts besides that the head reads
    what the teacher's reads.
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
    patience: int = 3
    ema_decay: float = 0.0
    distil_weight: float = 1.0
    states_weight: float = 1.0
    temperature: float = 1.0
    seed: int = 17

    def __post_init__(self) -> None:
        rates = [self.learning_rate, self.temperature]
        rates += [] if self.head_learning_rate is None else [self.head_learning_rate]
        if min(self.epochs, self.rows_per_batch, self.patience) < 1 or min(rates) <= 0:
            raise InvalidArgumentError(
                "epochs, rows per batch, patience, learning rates and temperature must be positive"
            )
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

    @property
    def balances_classes(self) -> bool:
        return self.class_weights == "balanced"

    def changed(self, changes: Mapping[str, Any]) -> TuneSettings:
        """These settings with some replaced, as JSON holds them; `recipe` may itself name only what it replaces."""
        given = dict(changes)
        if "recipe" in given:
            given["recipe"] = _changed(self.recipe, _as_mapping(given["recipe"]), "recipe")
        return _changed(self, given, "tuning")


def _changed(settings: SettingsT, changes: Mapping[str, Any], what: str) -> SettingsT:
    known = {field.name: "None" in str(field.type) for field in fields(settings)}
    for name, value in changes.items():
        if name not in known:
            raise InvalidArgumentError(f"{what} setting {name!r} is unknown; known are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, _accepted(getattr(settings, name), known[name])):
            raise InvalidArgumentError(f"{what} setting {name!r} cannot be {str(value)[:80]!r}")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in changes.items()}
    return replace(settings, **values)


def _accepted(current: object, optional: bool) -> tuple[type, ...]:
    """The types of JSON that may replace a value; an optional one is a number."""
    if optional:
        return (float, int, type(None))
    if isinstance(current, float):
        return (float, int)
    return (tuple, list) if isinstance(current, tuple) else (type(current),)


def _as_mapping(value: object) -> Mapping[str, Any]:
    if isinstance(value, AdapterRecipe):
        return asdict(value)
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"tuning setting 'recipe' cannot be {str(value)[:80]!r}")
    return value
