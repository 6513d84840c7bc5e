"""A root in the making: its start, and its states for some rows, with whole fragments or a table's fallbacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from backends.plot.keys import FragmentShape
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.tokenizer import RootTokenizer, Text, TokenRows
from builder.construct.root.conversion import RootParts
from builder.construct.root.teacher import Teacher
from builder.construct.training.device import device_of
from builder.construct.training.rows import PaddedRows, boundary_states, padded_rows

NUM_SINKS = 2
"""One for the beginning of a text, one for its end."""
_SAMPLED_TEXTS = 64


class Student:
    """The parts of a root, put together as serving puts them together, but for the table."""

    def __init__(self, parts: RootParts, tokenizer: RootTokenizer) -> None:
        self.parts = parts
        self._tokenizer = tokenizer
        self._shape = FragmentShape.centred(parts.geometry.n)

    def rows(self, texts: Sequence[Text]) -> PaddedRows:
        return self.padded(self._tokenizer.encode(texts))

    def padded(self, tokens: TokenRows) -> PaddedRows:
        """Make rows on the device that the lower layers are on."""
        return padded_rows(tokens, self._shape, self.parts.geometry.max_tokens).to(device_of(self.parts.lower))

    def states(self, rows: PaddedRows, fragments: Tensor) -> list[Tensor]:
        """Boundary and upper states of the real tokens, each `[T, H]` fp32.

        Shape: fragments `[T, n]`
        """
        parts = self.parts
        boundary = boundary_states(parts.lower, parts.aggregation, rows, fragments).float()
        attend = padded_attention(parts.geometry.num_heads, rows.mask)
        upper = parts.upper.states(rows.pad(boundary), attend)
        return [boundary, *(state[rows.mask].float() for state in upper)]


@torch.no_grad()
def start_fragments(student: Student, teacher: Teacher, texts: Sequence[str]) -> None:
    """Give slots the mean embedding of neighbouring positions, and sinks the special tokens' mean keys and values.

    A model cut down to three tokens lacks the special tokens, on which its lower layers rest much of their attention,
    and takes every fragment for the beginning of a text. Made up for from the start, this spares hundreds of steps.
    """
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
    ends = torch.stack(
        [states[:, 0], states[torch.arange(len(states), device=states.device), last]], dim=1
    )  # (B, 2, H)
    _, keys, values = query_key_value(ends).mean(dim=0).chunk(3, dim=-1)
    return torch.stack([keys, values])
