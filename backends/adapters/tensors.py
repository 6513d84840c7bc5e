"""Dataclasses that consist of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
import xxhash
from torch import Tensor

from backends.errors import InvalidArgumentError

TensorsT = TypeVar("TensorsT", bound="Tensors")


@dataclass(frozen=True)
class Form:
    """Kind, shapes and settings of a `Tensors`, without the values of its tensors."""

    kind: type[Tensors]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    settings: tuple[tuple[str, Any], ...]

    def filled(self, tensors: Mapping[str, Tensor]) -> Any:
        """Make an instance of this form from tensors of its names and shapes."""
        return self.kind(**tensors, **dict(self.settings))


@dataclass(frozen=True)
class Tensors:
    """Fields may also be settings, and a tensor that is not there is `None`."""

    def named(self) -> dict[str, Tensor]:
        return {name: value for name, value in list(vars(self).items()) if isinstance(value, Tensor)}

    @cached_property
    def form(self) -> Form:
        tensors = self.named()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        settings = tuple((name, value) for name, value in values.items() if name not in tensors)
        return Form(type(self), tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items()), settings)

    def map(self: TensorsT, change: Callable[[str, Tensor], Tensor]) -> TensorsT:
        """The same with each tensor replaced by `change(name, tensor)`."""
        return replace(self, **{name: change(name, tensor) for name, tensor in self.named().items()})

    def to(self: TensorsT, dtype: torch.dtype, device: torch.device | None = None) -> TensorsT:
        return self.map(lambda _, tensor: tensor.to(device=device, dtype=dtype))

    def require_finite(self, what: str) -> None:
        for name, tensor in self.named().items():
            if not bool(torch.isfinite(tensor).all()):
                raise InvalidArgumentError(f"{what}: {name} holds NaN or infinite values")

    @property
    def checksum(self) -> str:
        """Checksum of the tensors' values, in hexadecimal digits."""
        digest = xxhash.xxh3_128()
        for name, tensor in self.named().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.named().values())
