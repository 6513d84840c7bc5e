"""Adapters as files hold them: which parts there are, and their tensors, laid out as slots are.

A matrix is stored as `[U, in, out]`, the transpose of its form in a part, so that a slot is filled by copying.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from torch import Tensor

from backends.adapters.adapter_set import AdapterSet, part_kinds
from backends.adapters.head import Head
from backends.adapters.parts import Bottleneck, Part
from backends.adapters.tensors import Tensors
from backends.errors import CorruptFileError, InvalidArgumentError
from backends.fields import Fields

_HEAD_TENSORS = {"weight", "bias", "dense_weight", "dense_bias"}


def stored(adapters: AdapterSet) -> dict[str, Tensor]:
    """Return every tensor of a file, by the names of `AdapterSet.named`."""
    return {name: turned(tensor) for name, tensor in adapters.named().items()}


def described(adapters: AdapterSet) -> list[dict[str, Any]]:
    """Describe the parts for a manifest."""
    return [_described(name, part) for name, part in adapters.parts().items()]


def restored(parts: Sequence[Fields], tensors: Mapping[str, Tensor]) -> AdapterSet:
    """Make the adapters of a file's tensors and its manifest's description.

    Raises:
        CorruptFileError: What the manifest describes does not lie in the file.
        InvalidArgumentError: The tensors do not fit together.
    """
    adapters = AdapterSet.from_parts({part.text("name", part_kinds()): _part(part, tensors) for part in parts})
    require_one_type("adapters", adapters.named().values())
    return adapters


def restored_head(name: str, tensors: Mapping[str, Tensor], settings: Fields) -> Head:
    """Make the head of the tensors under a name; raises as `restored`."""
    own = fields_of(name, tensors)
    _require_names(name, own, {"weight", "bias"}, _HEAD_TENSORS)
    require_one_type(name, own.values())
    if "activation" in settings:
        own["activation"] = settings.text("activation")
    return Head(**own)


def require_one_type(what: str, tensors: Collection[Tensor]) -> None:
    """Reject tensors that cannot be computed with together."""
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1 or not all(kind.is_floating_point and kind.itemsize > 1 for kind in types):
        raise InvalidArgumentError(f"the tensors of {what} are of the types {', '.join(sorted(map(str, types)))}")


def _require_names(what: str, found: Collection[str], needed: Set[str], known: Set[str]) -> None:
    if needed - set(found) or set(found) - known:
        raise CorruptFileError(
            f"{what} has the tensors {', '.join(sorted(found))} where {', '.join(sorted(needed))} are"
        )


def prefixed(name: str, part: Tensors) -> dict[str, Tensor]:
    return {f"{name}.{key}": tensor for key, tensor in part.named().items()}


def fields_of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the tensors under the name of a part or a head."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}


def turned(tensor: Tensor) -> Tensor:
    """Transpose a part's matrices between their own form and the file's, `[U, in, out]`, which pools use too."""
    return tensor.transpose(-1, -2) if tensor.ndim == 3 else tensor


def _described(name: str, part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "width": part.width}
    if isinstance(part, Bottleneck):
        found |= {"activation": part.activation, "norm_first": part.norm_first}
    return found


def _part(description: Fields, tensors: Mapping[str, Tensor]) -> Part:
    name = description.text("name", part_kinds())
    kind = part_kinds()[name]
    own: dict[str, Any] = {key: turned(tensor) for key, tensor in fields_of(name, tensors).items()}
    names = kind.shapes(1, 1, 1, 1).keys()
    _require_names(name, own, names, names)
    if kind is Bottleneck and "activation" in description:
        own["activation"] = description.text("activation")
    if kind is Bottleneck and "norm_first" in description:
        own["norm_first"] = description.flag("norm_first")
    return kind(**own)
