"""The upper half: the transformer layers that all tenants of a root share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from backends.root.encoder import Attend, EncoderLayer, LayerAdapter
from backends.root.geometry import RootGeometry

AdapterOf = Callable[[int], LayerAdapter]
"""The adapter of each upper layer, counted from 0."""


class UpperLayers(nn.Module):
    """The shared stack, every layer of which may be adapted.

    Shape:
        hidden: `[..., H]`.
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(geometry) for _ in range(geometry.num_upper_layers))

    def forward(self, hidden: Tensor, attend: Attend, adapter_of: AdapterOf | None = None) -> Tensor:
        for state in self.states(hidden, attend, adapter_of):
            hidden = state
        return hidden

    def states(self, hidden: Tensor, attend: Attend, adapter_of: AdapterOf | None = None) -> Iterator[Tensor]:
        """The output of each layer in turn; distillation compares them all."""
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, attend, adapter_of(index) if adapter_of is not None else None)
            yield hidden
