"""An imported adapter's modules, one per layer of the whole model, and how they become parts of the upper layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet, part_kinds, part_sizes
from backends.adapters.parts import Part
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry


@dataclass(frozen=True)
class LayerModule:
    """One part of one layer, with the tensors' names as in the part; `layer` counts those of the whole model.

    `site` is the name that the library has for it.
    """

    part: str
    layer: int
    site: str
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return next(iter(self.tensors.values())).shape[0]


def stack_modules(modules: Sequence[LayerModule], geometry: RootGeometry) -> AdapterSet:
    """Turn the modules of upper layers into parts; zeros fill layers without a module and narrow modules."""
    for module in modules:
        _require_fits(module, geometry)
    upper = [module for module in modules if module.layer >= geometry.num_lower_layers]
    names = dict.fromkeys(module.part for module in upper)
    parts = {name: _stacked([m for m in upper if m.part == name], geometry) for name in names}
    adapters = AdapterSet.from_parts(parts)
    adapters.require_servable()
    return adapters


def require_upper(modules: Sequence[LayerModule], geometry: RootGeometry, remedy: str) -> None:
    """Reject modules in layers that are a table here."""
    lower = sorted((m.layer, m.site) for m in modules if m.layer < geometry.num_lower_layers)
    if not lower:
        return
    raise InvalidArgumentError(
        f"it adapts layer {lower[0][0]} ({lower[0][1]}), but the layers 0 to {geometry.num_lower_layers - 1} of this "
        f"root are a table, which no adapter reaches; train it {remedy}, or import it with --retune, which leaves out "
        "what lies there and tunes the rest on your data"
    )


def _require_fits(module: LayerModule, geometry: RootGeometry) -> None:
    total = geometry.num_lower_layers + geometry.num_upper_layers
    if module.layer >= total:
        raise InvalidArgumentError(f"it adapts layer {module.layer}, but the root has {total}; it is for another base")
    inputs, outputs = part_sizes(geometry, module.part)
    expected = part_kinds()[module.part].shapes(1, inputs, outputs, module.width)
    for name, tensor in module.tensors.items():
        if tuple(tensor.shape) != expected[name][1:]:
            raise InvalidArgumentError(
                f"{module.site} of layer {module.layer} has {name} of shape {tuple(tensor.shape)} where this root, "
                f"{geometry.hidden_size} wide, needs {expected[name][1:]}; it is for another base"
            )


def _stacked(modules: Sequence[LayerModule], geometry: RootGeometry) -> Part:
    kind = part_kinds()[modules[0].part]
    inputs, outputs = part_sizes(geometry, modules[0].part)
    shapes = kind.shapes(geometry.num_upper_layers, inputs, outputs, max(module.width for module in modules))
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for module in modules:
        for name, tensor in module.tensors.items():
            target = tensors[name][module.layer - geometry.num_lower_layers]
            target[tuple(slice(size) for size in tensor.shape)] = tensor
    content: dict[str, Any] = {**tensors, **modules[0].settings}
    return kind(**content)
