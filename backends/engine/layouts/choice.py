"""Layouts by name."""

from __future__ import annotations

import torch

from backends.engine.layouts.concatenated import Concatenated
from backends.engine.layouts.grid import Layout
from backends.engine.layouts.micro_batches import TOKENS_PER_SHARE
from backends.engine.layouts.padded import Padded, Sorted
from backends.engine.layouts.ragged import Ragged
from backends.errors import InvalidArgumentError

LAYOUT_NAMES = ("padded", "sorted", "concat", "slotted", "ragged")


def layout_named(name: str, device: torch.device) -> Layout:
    tokens_per_batch = TOKENS_PER_SHARE if device.type == "cpu" else None
    match name:
        case "padded":
            return Padded(tokens_per_batch)
        case "sorted":
            return Sorted(tokens_per_batch)
        case "concat":
            return Concatenated(tokens_per_batch)
        case "slotted":
            return Concatenated(tokens_per_batch, num_slots=None)
        case "ragged":
            return Ragged(tokens_per_batch)
    raise InvalidArgumentError(f"layout {name!r} is not one of {', '.join(LAYOUT_NAMES)}")
