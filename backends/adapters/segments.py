"""Segments of a batch that are multiplied together: their parts lie in one pool and have the same settings.

All classes implement `SegmentGroup`. `take` reads the segments' tokens from packed states. `multiply` multiplies each
segment by its own matrix, and `spread` returns each segment's own vector. `add_product` adds a product and a vector to
the states, `add_pair` a product with two matrices, and `normalise` computes layer norms, in one pass.

- `OneSegment`: an ordinary product.
- `AlignedSegments`: segments of one length, side by side; one batched product without a copy.
- `PaddedSegments`: segments of similar lengths; short ones repeat their first token.
- `FlatSegments`: segments of any lengths in one grouped product, in bf16 on a GPU.
- `CompiledSegments`: segments of any lengths where they lie, in a compiled loop on a CPU.
- `Bf16Segments`: the same in bf16, on a CPU with AVX512-BF16.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.length_groups import length_groups
from backends.adapters.row_selection import RowSelection, multiplied_rows
from backends.kernels.bf16_products import HAS_BF16_PRODUCTS, add_bf16_pairs, add_bf16_products, fits_tiles
from backends.kernels.compiling import flat_memory_of, memory_of
from backends.kernels.segments import add_products, multiply_segments, normalise_segments

_LENGTH_STEP = 8
_GROUPED_ALIGNMENT_BYTES = 16
GROUP_COST_TOKENS = 48
"""Cost of one more group, in tokens of a product."""


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

    def multiply(self, states: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None) -> Tensor:
        """Return states·weights + vectors of the segments' tokens, in a shape that `add_product` takes."""
        ...

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        """Compute states += inputs·weights + vectors at the segments' tokens."""
        ...

    def add_pair(self, states: Tensor, inputs: Tensor, down: Tensor, up: Tensor, layer: int) -> None:
        """Compute states += inputs·down·up at the segments' tokens."""
        self.add_product(states, self.multiply(inputs, down, layer), up, layer)

    def normalise(self, states: Tensor, weights: Tensor, biases: Tensor, layer: int, eps: float, into: Tensor) -> None:
        """Write the layer norms of states, with the segments' own weights and biases, to `into`."""
        ...


class _TakenSegments(SegmentGroup, ABC):
    """Segments whose tokens are taken from the states, in a shape of the class, and put back."""

    @abstractmethod
    def take(self, states: Tensor) -> Tensor: ...

    @abstractmethod
    def put(self, states: Tensor, values: Tensor) -> None: ...

    @abstractmethod
    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        """Return each segment's vector, in a shape that adds to the taken tokens."""

    @abstractmethod
    def product(self, taken: Tensor, weights: Tensor, layer: int) -> Tensor:
        """Multiply taken tokens by their segments' matrices."""

    def multiply(self, states: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None) -> Tensor:
        product = self.product(self.take(states), weights, layer)
        return product if vectors is None else product.add_(self.spread(vectors, layer))

    def normalise(self, states: Tensor, weights: Tensor, biases: Tensor, layer: int, eps: float, into: Tensor) -> None:
        taken = self.take(states)
        normed = functional.layer_norm(taken, taken.shape[-1:], eps=eps)
        self.put(into, normed.mul_(self.spread(weights, layer)).add_(self.spread(biases, layer)))


class OneSegment(_TakenSegments):
    """Shape: `take` returns `[length, …]`."""

    def __init__(self, segment: Segment, row: int) -> None:
        self._segment, self._row = segment, row

    def take(self, states: Tensor) -> Tensor:
        return states[self._segment.tokens]

    def put(self, states: Tensor, values: Tensor) -> None:
        states[self._segment.tokens] = values

    def product(self, taken: Tensor, weights: Tensor, layer: int) -> Tensor:
        return taken @ weights[layer, self._row]

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        return vectors[layer, self._row]

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        total = states[self._segment.tokens].addmm_(inputs, weights[layer, self._row])
        if vectors is not None:
            total.add_(self.spread(vectors, layer))


class _BatchedSegments(_TakenSegments):
    """Segments as `[segments, length, …]`, so that a batched product gives each its own matrix."""

    def __init__(self, rows: RowSelection) -> None:
        self._rows = rows

    def product(self, taken: Tensor, weights: Tensor, layer: int) -> Tensor:
        return torch.bmm(taken, self._rows.of(weights, layer))

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        return self._rows.of(vectors, layer)[:, None]


class AlignedSegments(_BatchedSegments):
    """Shape: `take` returns `[segments, length, …]`."""

    def __init__(self, segments: Sequence[Segment], rows: RowSelection) -> None:
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
    """Shape: `take` returns `[segments, longest, …]`."""

    def __init__(self, segments: Sequence[Segment], rows: RowSelection, device: torch.device) -> None:
        super().__init__(rows)
        self._longest = _rounded_length(max(segment.length for segment in segments))
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


class FlatSegments(_TakenSegments):
    """Segments in the order of their rows, as one grouped product.

    Rows that no segment uses, between ones that are used, are groups without tokens: unless they are many, that costs
    less than a copy of the weights. Tokens that lie in the order of their rows are not copied either.

    Shape:
        `take` returns `[tokens, …]`.
    """

    def __init__(self, segments: Sequence[Segment], rows: Sequence[int], device: torch.device) -> None:
        members = sorted(zip(rows, segments, strict=True), key=lambda member: (member[0], member[1].start))
        multiplied = multiplied_rows(sorted(set(rows)))
        index_of = {row: index for index, row in enumerate(multiplied)}
        lengths = np.zeros(len(multiplied), dtype=np.int64)
        for row, segment in members:
            lengths[index_of[row]] += segment.length
        self._rows = RowSelection(multiplied, device)
        self._ends = torch.from_numpy(lengths.cumsum().astype(np.int32)).to(device)
        self._index_of_tokens = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device)
        self._tokens = _tokens_of([segment for _, segment in members], device)

    def take(self, states: Tensor) -> Tensor:
        tokens = self._tokens
        return states[tokens] if isinstance(tokens, slice) else states.index_select(0, tokens)

    def put(self, states: Tensor, values: Tensor) -> None:
        if isinstance(self._tokens, slice):
            states[self._tokens] = values
        else:
            states.index_copy_(0, self._tokens, values)

    def product(self, taken: Tensor, weights: Tensor, layer: int) -> Tensor:
        product: Tensor = torch._grouped_mm(taken, self._rows.of(weights, layer), offs=self._ends)
        return product

    def spread(self, vectors: Tensor, layer: int) -> Tensor:
        return self._rows.of(vectors, layer).index_select(0, self._index_of_tokens)

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        total = self.take(states).add_(self.product(inputs, weights, layer))
        if vectors is not None:
            total.add_(self.spread(vectors, layer))
        if not isinstance(self._tokens, slice):
            self.put(states, total)


class CompiledSegments(SegmentGroup):
    """Segments of any lengths on a CPU, in compiled loops that read and write their tokens where they lie.

    Shape:
        `multiply` returns `[T, out]` in fp32, with anything at the tokens of no segment.
    """

    def __init__(self, segments: Sequence[Segment], rows: Sequence[int]) -> None:
        starts, ends = [segment.start for segment in segments], [segment.end for segment in segments]
        self._segments = tuple(np.array(column, dtype=np.int64) for column in (starts, ends, rows))

    def multiply(self, states: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None) -> Tensor:
        products = torch.empty(len(states), weights.shape[-1])
        self._run(multiply_segments, states, products, weights, layer, vectors)
        return products

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        self._run(add_products, states, inputs, weights, layer, vectors)

    def normalise(self, states: Tensor, weights: Tensor, biases: Tensor, layer: int, eps: float, into: Tensor) -> None:
        own = memory_of(weights[layer]), memory_of(biases[layer])
        normalise_segments(memory_of(states), *self._segments, *own, np.float32(eps), memory_of(into))

    def _run(
        self,
        loop: Callable[..., None],
        states: Tensor,
        products: Tensor,
        weights: Tensor,
        layer: int,
        vectors: Tensor | None,
    ) -> None:
        own = memory_of(weights[layer]), None if vectors is None else memory_of(vectors[layer])
        loop(flat_memory_of(states), states.stride(0), *self._segments, memory_of(products), *own)


class Bf16Segments(CompiledSegments):
    """Segments in bf16 on a CPU with AVX512-BF16; sizes that fit no tiles are multiplied as `CompiledSegments` does.

    A token's numbers do not depend on the tokens beside it.

    Shape:
        `multiply` returns `[T, out]`: bf16 with zeros at the tokens of no segment, or what `CompiledSegments` returns.
    """

    def multiply(self, states: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None) -> Tensor:
        if not fits_tiles(weights):
            return super().multiply(states, weights, layer, vectors)
        products = states.new_zeros(len(states), weights.shape[-1])
        self.add_product(products, states, weights, layer, vectors)
        return products

    def add_product(
        self, states: Tensor, inputs: Tensor, weights: Tensor, layer: int, vectors: Tensor | None = None
    ) -> None:
        if not fits_tiles(weights):
            super().add_product(states, inputs.float(), weights, layer, vectors)
            return
        inputs = inputs.bfloat16()
        own = memory_of(weights[layer]), None if vectors is None else memory_of(vectors[layer])
        lines = flat_memory_of(inputs), inputs.stride(0)
        add_bf16_products(flat_memory_of(states), states.stride(0), *self._segments, *lines, *own)

    def add_pair(self, states: Tensor, inputs: Tensor, down: Tensor, up: Tensor, layer: int) -> None:
        if not (fits_tiles(down) and fits_tiles(up)):
            super().add_pair(states, inputs, down, up, layer)
            return
        inputs = inputs.bfloat16()
        lines = flat_memory_of(inputs), inputs.stride(0), layer, memory_of(down), memory_of(up)
        add_bf16_pairs(flat_memory_of(states), states.stride(0), *self._segments, *lines)


def grouped(segments: Sequence[Segment], rows: Sequence[int], tensors: Mapping[str, Tensor]) -> list[SegmentGroup]:
    """Form the groups of segments that cost least, with their rows of a pool of these tensors.

    On a CPU there is one, whose loops give a token the same numbers whatever is beside it.

    Shape: tensors `[U, rows, …]`.
    """
    tensor = next(iter(tensors.values()))
    device = tensor.device
    if device.type == "cpu":
        has_products = tensor.dtype == torch.bfloat16 and HAS_BF16_PRODUCTS
        return [(Bf16Segments if has_products else CompiledSegments)(segments, rows)]
    if len(segments) > 1 and all(map(_has_grouped_product, tensors.values())):
        return [FlatSegments(segments, rows, device)]
    groups = length_groups([segment.length for segment in segments], GROUP_COST_TOKENS)
    return [_group([segments[i] for i in group], [rows[i] for i in group], device) for group in groups]


def _has_grouped_product(tensor: Tensor) -> bool:
    """Whether a GPU's grouped product reads a pool's tensor; vectors are not multiplied."""
    sizes = tensor.shape[2:] if tensor.ndim == 4 else ()
    is_aligned = all(size * tensor.itemsize % _GROUPED_ALIGNMENT_BYTES == 0 for size in sizes)
    return is_aligned and tensor.dtype == torch.bfloat16


def _group(segments: Sequence[Segment], rows: Sequence[int], device: torch.device) -> SegmentGroup:
    if len(segments) == 1:
        return OneSegment(segments[0], rows[0])
    members = sorted(zip(segments, rows, strict=True), key=lambda member: member[0].start)
    if _are_aligned([segment for segment, _ in members]):
        return AlignedSegments([segment for segment, _ in members], RowSelection([row for _, row in members], device))
    # Gathered tokens may have any order: ascending rows let the weights be read as a view.
    members.sort(key=lambda member: member[1])
    return PaddedSegments([s for s, _ in members], RowSelection([row for _, row in members], device), device)


def _tokens_of(segments: Sequence[Segment], device: torch.device) -> slice | Tensor:
    """Return the tokens of segments in this order."""
    if all(a.end == b.start for a, b in pairwise(segments)):
        return slice(segments[0].start, segments[-1].end)
    tokens = np.concatenate([np.arange(segment.start, segment.end) for segment in segments])
    return torch.from_numpy(tokens).to(device)


def _rounded_length(length: int) -> int:
    """Round a length up, so that few shapes occur."""
    return length + -length % _LENGTH_STEP


def _are_aligned(segments: Sequence[Segment]) -> bool:
    length = segments[0].length
    return all(a.end == b.start and b.length == length for a, b in pairwise(segments))
