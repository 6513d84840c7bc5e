"""The adapters of a mixed batch: its tokens form segments, and each segment uses its own hPLM's parts.

Segments whose parts are stored alike are multiplied together (`segments.py`), so many hPLMs cost about as much as one.
Layers and parts that no hPLM of the batch uses cost nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import ENTRANCE, LORA_MODULES, PROJECTED, SITES, LoraModule
from backends.adapters.device_bank import AdapterBank, PoolRow
from backends.adapters.segments import Segment, SegmentGroup, grouped
from backends.root.encoder import ACTIVATION_FUNCTIONS, LayerAdapter, Projection, Site
from backends.root.upper import Adapters


class BatchLayer(LayerAdapter, Protocol):
    """One layer of a mixed batch."""

    def changes(self, name: Projection) -> bool:
        """Whether `project` changes its outputs."""
        ...

    def reads_states(self, site: Site) -> bool:
        """Whether a part reads the states before the residual is added."""
        ...

    def add_and_norm(self, site: Site, states: Tensor, residual: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        """Add and normalise. `residual` may be None, already added to `states`, where nothing `reads_states`."""
        ...


class BatchAdapters(Adapters, Protocol):
    """The adapters of all of a batch's segments."""

    def layer(self, index: int) -> BatchLayer: ...

    def narrowed(self, segments: Sequence[Segment]) -> BatchAdapters:
        """Return those of fewer tokens."""
        ...


@dataclass(frozen=True)
class PooledPart:
    """One kind of part of some segments, all in one pool.

    Args:
        group: The segments.
        tensors: The pool's tensors.
        activation: The bottlenecks' activation.
        norm_first: Whether the bottlenecks read normalised states.
    """

    group: SegmentGroup
    tensors: dict[str, Tensor]
    activation: str = "relu"
    norm_first: bool = False

    def add_bottlenecks(self, layer: int, states: Tensor, total: Tensor) -> None:
        """Add the bottlenecks' outputs for `states` to `total`."""
        group, tensors = self.group, self.tensors
        inner = group.multiply(states, tensors["down_weight"], layer, tensors["down_bias"])
        inner = ACTIVATION_FUNCTIONS[self.activation](inner)
        group.add_product(total, inner, tensors["up_weight"], layer, tensors["up_bias"])

    def add_loras(self, layer: int, inputs: Tensor, outputs: Tensor) -> None:
        self.group.add_pair(outputs, inputs, self.tensors["down"], self.tensors["up"], layer)

    def normalise(self, layer: int, states: Tensor, eps: float, into: Tensor) -> None:
        self.group.normalise(states, self.tensors["weight"], self.tensors["bias"], layer, eps, into)


_KEYS = (
    ENTRANCE,
    *(f"bottleneck.{site}" for site in SITES),
    *(f"lora.{module}" for module in LORA_MODULES),
    *(f"norm.{site}" for site in SITES),
)


class SegmentedAdapters:
    """A batch's segments, grouped by the parts that they need, once for all layers.

    Args:
        bank: The slots' adapters.
        segments: Segments that cover the batch's tokens in order.
    """

    def __init__(self, bank: AdapterBank, segments: Sequence[Segment]) -> None:
        self._group({key: _pooled(key, bank, segments) for key in _KEYS}, segments)

    def narrowed(self, segments: Sequence[Segment]) -> SegmentedAdapters:
        """Read the same tensors: the bank may have changed since this batch was staged."""
        narrower = copy.copy(self)
        pooled_of = {key: [one.narrowed(segments) for one in pooled] for key, pooled in self._pooled.items()}
        narrower._group(pooled_of, segments)
        return narrower

    def normalise_all(self, site: Site) -> bool:
        """Whether every segment has a norm of its own at a site."""
        return sum(len(one.segments) for one in self._pooled[f"norm.{site}"]) == self._num_segments

    def _group(self, pooled: Mapping[str, Sequence[_Pooled]], segments: Sequence[Segment]) -> None:
        parts = {key: [part for one in of_key for part in one.parts()] for key, of_key in pooled.items()}
        self._pooled, self._num_segments = pooled, len(segments)
        self.entrances = parts[ENTRANCE]
        self.bottlenecks: dict[Site, list[PooledPart]] = {site: parts[f"bottleneck.{site}"] for site in SITES}
        self.loras: dict[LoraModule, list[PooledPart]] = {module: parts[f"lora.{module}"] for module in LORA_MODULES}
        self.norms: dict[Site, list[PooledPart]] = {site: parts[f"norm.{site}"] for site in SITES}

    def enter(self, hidden: Tensor) -> Tensor:
        if not self.entrances:
            return hidden
        entered = hidden.clone()
        for part in self.entrances:
            part.add_bottlenecks(0, hidden, entered)
        return entered

    def layer(self, index: int) -> SegmentedLayer:
        return SegmentedLayer(self, index)


@dataclass(frozen=True)
class SegmentedLayer:
    """One layer of a mixed batch, for inference: the layer's own tensors are overwritten.

    Shape:
        All states are `[T, …]`, packed.
    """

    adapters: SegmentedAdapters
    index: int

    def changes(self, name: Projection) -> bool:
        return any(self.adapters.loras[module] for module in PROJECTED[name])

    def project(self, name: Projection, inputs: Tensor, outputs: Tensor) -> Tensor:
        modules = PROJECTED[name]
        for module, block in zip(modules, outputs.chunk(len(modules), dim=-1), strict=True):
            for part in self.adapters.loras[module]:
                part.add_loras(self.index, inputs, block)
        return outputs

    def reads_states(self, site: Site) -> bool:
        return any(not part.norm_first for part in self.adapters.bottlenecks[site])

    def add_and_norm(self, site: Site, states: Tensor, residual: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        bottlenecks = self.adapters.bottlenecks[site]
        total = states if residual is None else states + residual
        first = self._normed(site, total, norm) if any(part.norm_first for part in bottlenecks) else states
        for part in bottlenecks:
            part.add_bottlenecks(self.index, first if part.norm_first else states, total)
        return self._normed(site, total, norm)

    def _normed(self, site: Site, states: Tensor, shared: nn.LayerNorm) -> Tensor:
        normed: Tensor = torch.zeros_like(states) if self.adapters.normalise_all(site) else shared(states)
        for part in self.adapters.norms[site]:
            part.normalise(self.index, states, shared.eps, normed)
        return normed


@dataclass(frozen=True)
class _Pooled:
    """Segments with parts of one kind and of the same settings, each with its row of their pool."""

    tensors: dict[str, Tensor]
    settings: Mapping[str, Any]
    segments: Sequence[Segment]
    rows: Sequence[int]

    def parts(self) -> list[PooledPart]:
        if not self.segments:
            return []
        groups = grouped(self.segments, self.rows, self.tensors)
        return [PooledPart(group, self.tensors, **self.settings) for group in groups]

    def narrowed(self, segments: Sequence[Segment]) -> _Pooled:
        row_of = {segment.slot: row for segment, row in zip(self.segments, self.rows, strict=True)}
        kept = [(segment, row_of[segment.slot]) for segment in segments if segment.slot in row_of]
        return replace(self, segments=[segment for segment, _ in kept], rows=[row for _, row in kept])


def _pooled(key: str, bank: AdapterBank, segments: Sequence[Segment]) -> list[_Pooled]:
    """Gather the segments that have this part by pool and settings."""
    alike: dict[Hashable, list[tuple[Segment, PoolRow]]] = {}
    for segment in segments:
        if pool_row := bank.pool_rows[segment.slot].get(key):
            alike.setdefault((id(pool_row.pool), pool_row.form.settings), []).append((segment, pool_row))
    found = []
    for members in alike.values():
        pool, form = members[0][1].pool, members[0][1].form
        segments_of, rows = [segment for segment, _ in members], [pool_row.row for _, pool_row in members]
        found.append(_Pooled(pool.tensors, dict(form.settings), segments_of, rows))
    return found
