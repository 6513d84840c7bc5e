"""The upper layers, which all tenants of a root share."""

from __future__ import annotations

from collections.abc import Iterator
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

    def forward(self, hidden: Tensor, attend: Attend, adapters: Adapters | None = None) -> Tensor:
        for state in self.states(hidden, attend, adapters):
            hidden = state
        return hidden

    def states(self, hidden: Tensor, attend: Attend, adapters: Adapters | None = None) -> Iterator[Tensor]:
        """The output of each layer in turn; distillation compares them all."""
        if adapters is not None:
            hidden = adapters.enter(hidden)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, attend, None if adapters is None else adapters.layer(index))
            yield hidden
