"""The upper layers, which all tenants of a root share."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor, nn

from backends.root.encoder import Attend, EncoderLayer, LayerAdapter
from backends.root.geometry import RootGeometry


class Adapters(Protocol):
    """The changes to the upper layers, for one hPLM or for each one's tokens of a mixed batch."""

    def enter(self, hidden: Tensor) -> Tensor:
        """Hidden rows as the first layer gets them."""
        ...

    def layer(self, index: int) -> LayerAdapter:
        """Counted from 0."""
        ...


class UpperLayers(nn.Module):
    """The shared stack, every layer of which may be adapted.

    Shape:
        hidden: `[..., H]`.
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(geometry, index) for index in range(geometry.num_upper_layers))

    def part(self, span: range) -> UpperLayers:
        """Return some of the layers as a stack of their own; they keep their numbers for the attention."""
        part = copy.copy(self)
        part._modules = {"layers": self.layers[span.start : span.stop]}
        return part

    def forward(
        self, hidden: Tensor, attend: Attend, adapters: Adapters | None = None, span: Sequence[int] | None = None
    ) -> Tensor:
        for state in self.states(hidden, attend, adapters, span):
            hidden = state
        return hidden

    def states(
        self, hidden: Tensor, attend: Attend, adapters: Adapters | None = None, span: Sequence[int] | None = None
    ) -> Iterator[Tensor]:
        """The output of each layer of a span in turn, by default of all; distillation compares them all."""
        span = range(len(self.layers)) if span is None else span
        if adapters is not None and 0 in span:
            hidden = adapters.enter(hidden)
        for index in span:
            hidden = self.layers[index](hidden, attend, None if adapters is None else adapters.layer(index))
            yield hidden
