"""A batch without padding: rows end to end, those of one hPLM side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.product import Segment
from backends.root.encoder import Attend


@dataclass(frozen=True)
class PackedRows:
    """Rows laid end to end in the order of their slots.

    `order[i]` says which of the rows handed in lies at place i. Rows of one length attend in one call;
    `length_groups` holds their token indices.

    Shape:
        hidden: `[T, H]`; each group of `length_groups`: `[rows, length]`.
    """

    hidden: Tensor
    order: list[int]
    offsets: list[int]
    segments: list[Segment]
    length_groups: list[Tensor]


def pack_rows(rows: Sequence[Tensor], slots: Sequence[int]) -> PackedRows:
    """Rows `[L_i, H]` with their slots → one packed batch."""
    order = sorted(range(len(rows)), key=lambda index: (slots[index], len(rows[index])))
    offsets = [0]
    segments: list[Segment] = []
    for index in order:
        start, end = offsets[-1], offsets[-1] + len(rows[index])
        if segments and segments[-1].slot == slots[index]:
            segments[-1] = Segment(slots[index], segments[-1].start, end)
        else:
            segments.append(Segment(slots[index], start, end))
        offsets.append(end)
    hidden = torch.cat([rows[index] for index in order])
    return PackedRows(hidden, order, offsets, segments, _length_groups(offsets, hidden.device))


def _length_groups(offsets: list[int], device: torch.device) -> list[Tensor]:
    starts: dict[int, list[int]] = {}
    for start, end in pairwise(offsets):
        starts.setdefault(end - start, []).append(start)
    return [
        torch.tensor(of_length, device=device)[:, None] + torch.arange(length, device=device)
        for length, of_length in starts.items()
    ]


def packed_attention(num_heads: int, length_groups: Sequence[Tensor]) -> Attend:
    """Attention inside each row of a packed batch, no masked work.

    Shape:
        query, key, value: `[T, H]`.
    """

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context = torch.empty_like(value)
        for group in length_groups:
            heads = [_heads(states[group], num_heads) for states in (query, key, value)]
            attended = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
            context[group] = attended.transpose(1, 2).reshape(*group.shape, -1)
        return context

    return attend


def _heads(states: Tensor, num_heads: int) -> Tensor:
    rows, length, hidden = states.shape
    return states.view(rows, length, num_heads, hidden // num_heads).transpose(1, 2)
