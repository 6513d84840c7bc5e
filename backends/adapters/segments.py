"""A batch's segments that are multiplied together: those whose parts lie in one pool and work alike.

All of them offer the same things. `take` reads the segments' tokens out of packed states, `put` writes there,
`multiply` gives every segment its own matrix, `spread` its own vector, and `add_product` adds a product and a vector to
the states without a pass of its own.

- `OneSegment`: an ordinary product.
- `AlignedSegments`: equally long and side by side, so one batched product without a copy.
- `PaddedSegments`: of similar lengths; short ones repeat their first token, which then comes out alike each time.
- `FlatSegments`: of any lengths, in one grouped product, for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backends.adapters.length_groups import length_groups

_LENGTH_STEP = 8
GROUP_COST_TOKENS = 48
"""What one more group costs, in tokens that one product would take instead."""


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `end` of the packed batch use this slot."""

    slot: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.end)


class SegmentGroup(Protocol):
    """Shape: states `[T, …]`; weights `[U, rows, in, out]` and vectors `[U, rows, n]` of a pool."""

    def take(self, states: Tensor) -> Tensor: ...

    def put(self, states: Tensor, values: Tensor) -> None: ...

    def multiply(self, inputs: Tensor, weights: Tensor, layer: int) -> Tensor: ...

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        """Each segment's vector, to be added to what was taken."""
        ...

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        """States += inputs·weights + vectors, at the segments' tokens; `inputs` as they were taken."""
        ...


class OneSegment:
    """Takes a few of its neighbours' tokens along, for a length that recurs, and drops what becomes of them."""

    def __init__(self, segment: Segment, row: int) -> None:
        self._segment, self._row = segment, row

    def take(self, states: Tensor) -> Tensor:
        first, length = self._taken(states)
        return states[first : first + length]

    def put(self, states: Tensor, values: Tensor) -> None:
        states[self._segment.tokens] = self._own(states, values)

    def multiply(self, inputs: Tensor, weights: Tensor, layer: int) -> Tensor:
        return inputs @ weights[layer, self._row]

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        return vectors[layer, self._row]

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        total, own = states[self._segment.tokens], self._own(states, inputs)
        if len(own) == len(inputs):
            total.addmm_(inputs, weights[layer, self._row])
        else:
            total.add_(self._own(states, inputs @ weights[layer, self._row]))
        if vectors is not None:
            total.add_(self.spread(vectors, layer))

    def _taken(self, states: Tensor) -> tuple[int, int]:
        """The first token, and how many."""
        length = min(len(states), _recurring(self._segment.length))
        return min(self._segment.start, len(states) - length), length

    def _own(self, states: Tensor, values: Tensor) -> Tensor:
        """Of what was made of the tokens taken."""
        before = self._segment.start - self._taken(states)[0]
        return values[before : before + self._segment.length]


class _BatchedSegments:
    """Segments taken as `[segments, length, …]`, so that a batched product gives each its own matrix."""

    def __init__(self, rows: PoolRows) -> None:
        self._rows = rows

    def multiply(self, inputs: Tensor, weights: Tensor, layer: int) -> Tensor:
        return torch.bmm(inputs, self._rows.of(weights, layer))

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        return self._rows.of(vectors, layer)[:, None]


class AlignedSegments(_BatchedSegments):
    """Shape: takes `[segments, length, …]`."""

    def __init__(self, segments: Sequence[Segment], rows: PoolRows) -> None:
        super().__init__(rows)
        self._tokens = slice(segments[0].start, segments[-1].end)
        self._length = segments[0].length

    def take(self, states: Tensor) -> Tensor:
        return states[self._tokens].view(-1, self._length, states.shape[-1])

    def put(self, states: Tensor, values: Tensor) -> None:
        states[self._tokens] = values.flatten(0, 1)

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        total = self.take(states).baddbmm_(inputs, self._rows.of(weights, layer))
        if vectors is not None:
            total.add_(self.spread(vectors, layer))


class PaddedSegments(_BatchedSegments):
    """Shape: takes `[segments, longest, …]`."""

    def __init__(self, segments: Sequence[Segment], rows: PoolRows, device: torch.device) -> None:
        super().__init__(rows)
        self._longest = _recurring(max(segment.length for segment in segments))
        starts = np.array([segment.start for segment in segments])[:, None]
        lengths = np.array([segment.length for segment in segments])[:, None]
        steps = np.arange(self._longest)
        self._index = torch.from_numpy((starts + np.where(steps < lengths, steps, 0)).reshape(-1)).to(device)

    def take(self, states: Tensor) -> Tensor:
        return states.index_select(0, self._index).view(-1, self._longest, states.shape[-1])

    def put(self, states: Tensor, values: Tensor) -> None:
        states.index_copy_(0, self._index, values.flatten(0, 1))

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        total = self.take(states).baddbmm_(inputs, self._rows.of(weights, layer))
        if vectors is not None:
            total.add_(self.spread(vectors, layer))
        self.put(states, total)


class FlatSegments:
    """Shape: takes `[tokens, …]`."""

    def __init__(self, segments: Sequence[Segment], rows: PoolRows, device: torch.device) -> None:
        tokens = np.concatenate([np.arange(segment.start, segment.end) for segment in segments])
        lengths = np.array([segment.length for segment in segments])
        self._tokens = torch.from_numpy(tokens).to(device)
        self._ends = torch.from_numpy(lengths.cumsum().astype(np.int32)).to(device)
        self._segment_of = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device)
        self._rows = rows

    def take(self, states: Tensor) -> Tensor:
        return states.index_select(0, self._tokens)

    def put(self, states: Tensor, values: Tensor) -> None:
        states.index_copy_(0, self._tokens, values)

    def multiply(self, inputs: Tensor, weights: Tensor, layer: int) -> Tensor:
        product: Tensor = torch._grouped_mm(inputs, self._rows.of(weights, layer), offs=self._ends)
        return product

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        return self._rows.of(vectors, layer).index_select(0, self._segment_of)

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        total = self.take(states).add_(self.multiply(inputs, weights, layer))
        if vectors is not None:
            total.add_(self.spread(vectors, layer))
        self.put(states, total)


class PoolRows:
    """Some rows of a pool; neighbours in ascending order are read where they lie, others are gathered."""

    def __init__(self, rows: Sequence[int], device: torch.device) -> None:
        self._neighbours = slice(rows[0], rows[0] + len(rows))
        self._index: Tensor | None = None
        if list(rows) != list(range(rows[0], rows[0] + len(rows))):
            self._index = torch.tensor(rows, device=device)

    def of(self, tensor: Tensor, layer: int) -> Tensor:
        """`[U, rows, …]` → `[these rows, …]` of one layer."""
        if self._index is None:
            return tensor[layer, self._neighbours]
        return tensor[layer].index_select(0, self._index)


def grouped(
    segments: Sequence[Segment], rows: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[SegmentGroup]:
    """Segments and their rows of one pool → as few groups as cost least on this device."""
    if device.type == "cuda" and dtype == torch.bfloat16 and len(segments) > 1:
        return [FlatSegments(segments, PoolRows(rows, device), device)]
    groups = length_groups([segment.length for segment in segments], GROUP_COST_TOKENS)
    return [_group([segments[i] for i in group], [rows[i] for i in group], device) for group in groups]


def _group(segments: Sequence[Segment], rows: Sequence[int], device: torch.device) -> SegmentGroup:
    if len(segments) == 1:
        return OneSegment(segments[0], rows[0])
    members = sorted(zip(segments, rows, strict=True), key=lambda member: member[0].start)
    if _are_aligned([segment for segment, _ in members]):
        return AlignedSegments([segment for segment, _ in members], PoolRows([row for _, row in members], device))
    # Gathered tokens lie in any order, so they follow their weights.
    members.sort(key=lambda member: member[1])
    return PaddedSegments([s for s, _ in members], PoolRows([row for _, row in members], device), device)


def _recurring(length: int) -> int:
    """On a CPU a product is compiled for each length that it meets."""
    return length + -length % _LENGTH_STEP


def _are_aligned(segments: Sequence[Segment]) -> bool:
    length = segments[0].length
    return all(a.end == b.start and b.length == length for a, b in pairwise(segments))
