"""Layouts by name."""

from __future__ import annotations

from backends.engine.layouts.concatenated import Concatenated
from backends.engine.layouts.grid import Layout
from backends.engine.layouts.micro_batches import Sharing
from backends.engine.layouts.padded import Padded, Sorted
from backends.engine.layouts.ragged import Ragged
from backends.errors import InvalidArgumentError

LAYOUT_NAMES = ("padded", "sorted", "concat", "slotted", "ragged")


def layout_named(name: str, sharing: Sharing) -> Layout:
    match name:
        case "padded":
            return Padded(sharing)
        case "sorted":
            return Sorted(sharing)
        case "concat":
            return Concatenated(sharing)
        case "slotted":
            return Concatenated(sharing, num_slots=None)
        case "ragged":
            return Ragged(sharing)
    raise InvalidArgumentError(f"layout {name!r} is not one of {', '.join(LAYOUT_NAMES)}")
