"""Adapters as files hold them: which parts there are, and their tensors, laid out as slots are.

A matrix is stored as `[U, in, out]`, the transpose of its form in a part, so that a slot is filled by copying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from backends.adapters.adapter_set import AdapterSet, part_kinds
from backends.adapters.parts import Bottleneck, Part
from backends.adapters.tensors import Tensors


def stored(adapters: AdapterSet) -> dict[str, Tensor]:
    """Return every tensor of a file, by the names of `AdapterSet.named`."""
    return {name: turned(tensor) for name, tensor in adapters.named().items()}


def described(adapters: AdapterSet) -> list[dict[str, Any]]:
    """Describe the parts for a manifest."""
    return [_described(name, part) for name, part in adapters.parts().items()]


def restored(parts: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> AdapterSet:
    """Make the adapters of a file's tensors and its manifest's description; what lies in neither raises KeyError."""
    return AdapterSet.from_parts({part["name"]: _part(part, tensors) for part in parts})


def prefixed(name: str, part: Tensors) -> dict[str, Tensor]:
    return {f"{name}.{key}": tensor for key, tensor in part.named().items()}


def fields_of(name: str, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a part or a head: the tensors under its name, and its settings."""
    prefix = f"{name}."
    return {**{key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}, **settings}


def turned(tensor: Tensor) -> Tensor:
    """Transpose a part's matrices between their own form and the file's, `[U, in, out]`, which pools use too."""
    return tensor.transpose(-1, -2) if tensor.ndim == 3 else tensor


def _described(name: str, part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "width": part.width}
    if isinstance(part, Bottleneck):
        found |= {"activation": part.activation, "norm_first": part.norm_first}
    return found


def _part(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Part:
    name = description["name"]
    settings = {key: value for key, value in description.items() if key not in ("name", "width")}
    fields: dict[str, Any] = {key: turned(tensor) for key, tensor in fields_of(name, tensors, {}).items()}
    return part_kinds()[name](**fields, **settings)
