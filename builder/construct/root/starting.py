"""Where a distillation starts: what a fragment would see of a whole text, put into its slots and sinks.

A model cut down to three tokens lacks the special tokens, on which its lower layers rest much of their attention, and
takes every fragment for the beginning of a text. Made up for from the start, this spares hundreds of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from backends.root.geometry import RootGeometry
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.training.rows import PaddedRows

NUM_SINKS = 2
"""One for what a text begins with, one for what it ends with."""
_SAMPLED_TEXTS = 64


@torch.no_grad()
def start_fragments(student: Student, teacher: Teacher, texts: Sequence[str]) -> None:
    """Give slots the mean embedding of neighbouring positions, and sinks the special tokens' mean keys and values."""
    lower, geometry = student.parts.lower, student.parts.geometry
    slots = lower.slot_embeddings.weight
    first_position = teacher.position_embeddings[: geometry.n]
    slots += _inner_positions(teacher.position_embeddings, geometry) - first_position
    rows = student.rows(list(texts[:: max(1, len(texts) // _SAMPLED_TEXTS)][:_SAMPLED_TEXTS]))
    for index, states in enumerate(teacher.lower_states(rows)):
        layer = lower.layers.get_submodule(str(index))
        lower.sinks[index] = _special_keys_and_values(layer.get_submodule("query_key_value"), states, rows)


def _inner_positions(positions: Tensor, geometry: RootGeometry) -> Tensor:
    """The mean of n neighbouring positions over the first half of the positions, but for the very beginning.

    Shape: `[P, H]` → `[n, H]`
    """
    first = geometry.max_tokens // 16
    starts = torch.arange(first, max(first + 1, geometry.max_tokens // 2 - geometry.n + 1))
    return torch.stack([positions[starts + slot].mean(dim=0) for slot in range(geometry.n)])


def _special_keys_and_values(query_key_value: nn.Module, states: Tensor, rows: PaddedRows) -> Tensor:
    """Mean over the rows of their first and last token's keys and values.

    Shape: `[B, L, H]` → `[2, 2, H]`: keys and values, first and last
    """
    last = rows.mask.sum(dim=1) - 1
    ends = torch.stack([states[:, 0], states[torch.arange(len(states)), last]], dim=1)  # (B, 2, H)
    _, keys, values = query_key_value(ends).mean(dim=0).chunk(3, dim=-1)
    return torch.stack([keys, values])
