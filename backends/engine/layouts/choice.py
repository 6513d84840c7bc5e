"""Layouts that an export can choose, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from backends.engine.layouts.concatenated import Concatenated
from backends.engine.layouts.grid import Layout
from backends.engine.layouts.micro_batches import Sharing
from backends.engine.layouts.ragged import Ragged
from backends.errors import InvalidArgumentError

MakeLayout = Callable[[Sharing], Layout]
LAYOUTS: Mapping[str, MakeLayout] = MappingProxyType(
    {"ragged": Ragged, "concat": Concatenated, "slotted": partial(Concatenated, num_slots=None)}
)


def require_layout(name: str) -> None:
    """Raise `InvalidArgumentError` unless a layout has this name."""
    if name not in LAYOUTS:
        raise InvalidArgumentError(f"layout {name!r} is not one of {', '.join(LAYOUTS)}")
