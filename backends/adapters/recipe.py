"""Recipes: the adapters that a new hPLM gets. They start as the identity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.adapters.adapter_set import LORA_MODULES, SITES, AdapterSet, LoraModule, part_sizes
from backends.adapters.parts import MAX_WIDTH, Bottleneck, Lora, Norm
from backends.errors import InvalidArgumentError
from backends.root.encoder import ACTIVATION_FUNCTIONS, Site
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers


@dataclass(frozen=True)
class AdapterRecipe:
    """Bottlenecks at `bottleneck_sites`, LoRA on `lora_modules`, own LayerNorms where `norm_sites` says, an entrance.

    An `entrance_width` of 0 leaves the entrance out.
    """

    bottleneck_sites: tuple[Site, ...] = ("attention",)
    width: int = 48
    activation: str = "relu"
    lora_modules: tuple[LoraModule, ...] = ()
    rank: int = 8
    norm_sites: tuple[Site, ...] = ()
    entrance_width: int = 0

    def __post_init__(self) -> None:
        for what, names, known in (
            ("bottleneck site", self.bottleneck_sites, SITES),
            ("LoRA module", self.lora_modules, LORA_MODULES),
            ("norm site", self.norm_sites, SITES),
        ):
            if unknown := [name for name in names if name not in known]:
                raise InvalidArgumentError(f"{what} {unknown[0]!r} is not one of {', '.join(known)}")
        for what, width in (("bottleneck", self.width), ("rank", self.rank)):
            if not 1 <= width <= MAX_WIDTH:
                raise InvalidArgumentError(f"a {what} of {width} cannot be served; 1 to {MAX_WIDTH} can")
        if not 0 <= self.entrance_width <= MAX_WIDTH:
            raise InvalidArgumentError(f"an entrance of {self.entrance_width} cannot be served; 0 to {MAX_WIDTH} can")
        if self.activation not in ACTIVATION_FUNCTIONS:
            known_names = ", ".join(ACTIVATION_FUNCTIONS)
            raise InvalidArgumentError(f"adapter activation {self.activation!r} is not one of {known_names}")

    @classmethod
    def of(cls, adapters: AdapterSet) -> AdapterRecipe:
        """The recipe that gives adapters of the same parts; of widths that differ, the largest."""
        bottlenecks, loras, entrance = adapters.bottlenecks, adapters.loras, adapters.entrance
        plain = cls()
        activations = [part.activation for part in (*bottlenecks.values(), *filter(None, (entrance,)))]
        return cls(
            bottleneck_sites=tuple(bottlenecks),
            width=max((part.width for part in bottlenecks.values()), default=plain.width),
            activation=activations[0] if activations else plain.activation,
            lora_modules=tuple(loras),
            rank=max((part.width for part in loras.values()), default=plain.rank),
            norm_sites=tuple(adapters.norms),
            entrance_width=0 if entrance is None else entrance.width,
        )

    def identity(self, geometry: RootGeometry, upper: UpperLayers) -> AdapterSet:
        """Random down-projections, zeros above them, and copies of the root's LayerNorms: nothing is changed yet."""
        layers, hidden = geometry.num_upper_layers, geometry.hidden_size
        return AdapterSet(
            bottlenecks={site: self._bottleneck(layers, self.width, hidden) for site in self.bottleneck_sites},
            loras={module: self._lora(geometry, module) for module in self.lora_modules},
            norms={site: _shared_norm(upper, site) for site in self.norm_sites},
            entrance=self._bottleneck(1, self.entrance_width, hidden) if self.entrance_width else None,
        )

    def _bottleneck(self, layers: int, width: int, hidden: int) -> Bottleneck:
        return Bottleneck(
            down_weight=_random(layers, width, hidden),
            down_bias=torch.zeros(layers, width),
            up_weight=torch.zeros(layers, hidden, width),
            up_bias=torch.zeros(layers, hidden),
            activation=self.activation,
        )

    def _lora(self, geometry: RootGeometry, module: LoraModule) -> Lora:
        inputs, outputs = part_sizes(geometry, f"lora.{module}")
        layers = geometry.num_upper_layers
        return Lora(_random(layers, self.rank, inputs), torch.zeros(layers, outputs, self.rank))


def _random(layers: int, width: int, inputs: int) -> Tensor:
    return torch.randn(layers, width, inputs) / math.sqrt(inputs)


def _shared_norm(upper: UpperLayers, site: Site) -> Norm:
    norms = [layer.get_submodule("attention_norm" if site == "attention" else "ffn_norm") for layer in upper.layers]
    weight, bias = (torch.stack([norm.get_parameter(name).detach() for norm in norms]) for name in ("weight", "bias"))
    return Norm(weight.clone(), bias.clone())
