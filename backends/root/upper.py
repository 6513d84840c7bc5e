"""The upper half: the transformer layers that all tenants of a root share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from backends.root.encoder import Adapt, Attend, EncoderLayer
from backends.root.geometry import RootGeometry


class UpperLayers(nn.Module):
    """The shared stack, with one adapter site per layer.

    Shape:
        hidden: `[..., H]`; adapters: one per layer, or none at all.
    """

    def __init__(self, geometry: RootGeometry) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(geometry) for _ in range(geometry.num_upper_layers))

    def forward(self, hidden: Tensor, attend: Attend, adapters: Sequence[Adapt] | None = None) -> Tensor:
        for state in self.states(hidden, attend, adapters):
            hidden = state
        return hidden

    def states(self, hidden: Tensor, attend: Attend, adapters: Sequence[Adapt] | None = None) -> Iterator[Tensor]:
        """The output of each layer in turn; distillation compares them all."""
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, attend, adapters[index] if adapters is not None else None)
            yield hidden
