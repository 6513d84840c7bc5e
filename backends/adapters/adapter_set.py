"""The adapters of one hPLM, and its computation where it has the layers to itself.

Usage:
    adapters = AdapterSet(bottlenecks={"attention": Bottleneck(...)}, loras={"query": Lora(...)})
    states = upper(rows, attend, adapters)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from backends.adapters.parts import MAX_WIDTH, Bottleneck, Lora, Norm, Part
from backends.errors import InvalidArgumentError
from backends.root.encoder import Projection, Site
from backends.root.geometry import RootGeometry

LoraModule = Literal["query", "key", "value", "attention_output", "ffn_in", "ffn_out"]
SITES: tuple[Site, ...] = get_args(Site)
ENTRANCE = "bottleneck.entrance"
LORA_MODULES: tuple[LoraModule, ...] = get_args(LoraModule)
PROJECTED: Mapping[Projection, tuple[LoraModule, ...]] = MappingProxyType(
    {
        "query_key_value": ("query", "key", "value"),
        "attention_output": ("attention_output",),
        "ffn_in": ("ffn_in",),
        "ffn_out": ("ffn_out",),
    }
)
"""Modules whose outputs are joined in each linear layer."""


@dataclass(frozen=True)
class AdapterSet:
    """Parts of any kinds and widths; a set without parts is the identity.

    The `entrance` changes the hidden rows, h + A(h), before the first upper layer. A hidden state depends on few
    tokens, so the entrance can change a word's meaning as lower layers of the hPLM's own would.
    """

    bottlenecks: Mapping[Site, Bottleneck] = field(default_factory=dict)
    loras: Mapping[LoraModule, Lora] = field(default_factory=dict)
    norms: Mapping[Site, Norm] = field(default_factory=dict)
    entrance: Bottleneck | None = None

    def parts(self) -> dict[str, Part]:
        """Return every part by name: `bottleneck.entrance`, `bottleneck.<site>`, `lora.<module>`, `norm.<site>`."""
        return {
            **({} if self.entrance is None else {ENTRANCE: self.entrance}),
            **{f"bottleneck.{site}": part for site, part in self.bottlenecks.items()},
            **{f"lora.{module}": part for module, part in self.loras.items()},
            **{f"norm.{site}": part for site, part in self.norms.items()},
        }

    @classmethod
    def from_parts(cls, parts: Mapping[str, Part]) -> AdapterSet:
        if unknown := set(parts) - set(part_kinds()):
            raise InvalidArgumentError(f"adapters have no part {', '.join(sorted(unknown))}")
        return cls(
            {site: part for site in SITES if isinstance(part := parts.get(f"bottleneck.{site}"), Bottleneck)},
            {module: part for module in LORA_MODULES if isinstance(part := parts.get(f"lora.{module}"), Lora)},
            {site: part for site in SITES if isinstance(part := parts.get(f"norm.{site}"), Norm)},
            entrance if isinstance(entrance := parts.get(ENTRANCE), Bottleneck) else None,
        )

    def named(self) -> dict[str, Tensor]:
        """Return every tensor as `<part>.<tensor>`, the names in the bank."""
        return {f"{key}.{name}": tensor for key, part in self.parts().items() for name, tensor in part.named().items()}

    def map(self, change: Callable[[str, Tensor], Tensor]) -> AdapterSet:
        """The same with each tensor replaced by `change(name, tensor)`, names as in `named`."""
        return AdapterSet.from_parts(
            {
                key: part.map(lambda name, tensor, key=key: change(f"{key}.{name}", tensor))  # type: ignore[misc]
                for key, part in self.parts().items()
            }
        )

    def to(self, dtype: torch.dtype) -> AdapterSet:
        return self.map(lambda _, tensor: tensor.to(dtype))

    def require_servable(self) -> None:
        """Reject parts that are wider than servers support."""
        for key, part in self.parts().items():
            _require_servable(key, part)

    def require_finite(self, what: str) -> None:
        for key, part in self.parts().items():
            part.require_finite(f"{what}: {key}")

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts().values())

    def enter(self, hidden: Tensor) -> Tensor:
        """Hidden rows as the first upper layer gets them."""
        return hidden if self.entrance is None else hidden + self.entrance.change(0, hidden)

    def layer(self, index: int) -> AdaptedLayer:
        return AdaptedLayer(self, index)


@dataclass(frozen=True)
class AdaptedLayer:
    """One layer with one hPLM's adapters over all its tokens; differentiable."""

    adapters: AdapterSet
    index: int

    def project(self, name: Projection, inputs: Tensor, outputs: Tensor) -> Tensor:
        modules = PROJECTED[name]
        if not any(module in self.adapters.loras for module in modules):
            return outputs
        blocks = zip(modules, outputs.chunk(len(modules), dim=-1), strict=True)
        return torch.cat([self._changed(module, inputs, block) for module, block in blocks], dim=-1)

    def add_and_norm(self, site: Site, states: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
        total = states + residual
        if bottleneck := self.adapters.bottlenecks.get(site):
            seen = self._normed(site, total, norm) if bottleneck.norm_first else states
            total = total + bottleneck.change(self.index, seen)
        return self._normed(site, total, norm)

    def _changed(self, module: LoraModule, inputs: Tensor, outputs: Tensor) -> Tensor:
        lora = self.adapters.loras.get(module)
        return outputs if lora is None else outputs + lora.change(self.index, inputs)

    def _normed(self, site: Site, states: Tensor, shared: nn.LayerNorm) -> Tensor:
        own = self.adapters.norms.get(site)
        normed: Tensor = shared(states) if own is None else own.normalise(self.index, states, shared.eps)
        return normed


def part_kinds() -> dict[str, type[Part]]:
    """Return every part that a set may have, by name."""
    return {
        ENTRANCE: Bottleneck,
        **{f"bottleneck.{site}": Bottleneck for site in SITES},
        **{f"lora.{module}": Lora for module in LORA_MODULES},
        **{f"norm.{site}": Norm for site in SITES},
    }


def require_part_fits(key: str, part: Part, geometry: RootGeometry) -> None:
    """Reject a part made for other layers than the root's, and one that is too wide to be served."""
    inputs, outputs = part_sizes(geometry, key)
    expected = part.shapes(part_layers(geometry, key), inputs, outputs, part.width)
    for name, tensor in part.named().items():
        if tuple(tensor.shape) != expected[name]:
            raise InvalidArgumentError(
                f"{key}.{name} has shape {tuple(tensor.shape)}; this root's upper layers need {expected[name]}"
            )
    _require_servable(key, part)


def _require_servable(key: str, part: Part) -> None:
    if part.width > MAX_WIDTH:
        raise InvalidArgumentError(f"{key} is {part.width} wide; the widest that can be served is {MAX_WIDTH}")


def part_layers(geometry: RootGeometry, key: str) -> int:
    """Return the number of layers that a part is stacked over."""
    return 1 if key == ENTRANCE else geometry.num_upper_layers


def part_sizes(geometry: RootGeometry, key: str) -> tuple[int, int]:
    """Return the widths of a part's inputs and outputs."""
    hidden, inner = geometry.hidden_size, geometry.intermediate_size
    return {"lora.ffn_in": (hidden, inner), "lora.ffn_out": (inner, hidden)}.get(key, (hidden, hidden))
