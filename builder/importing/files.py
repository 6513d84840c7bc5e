"""The files of a saved adapter: configuration as JSON, weights as safetensors or as a plain torch file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from backends.errors import CorruptFileError, InvalidArgumentError, shown

_LARGEST = 1e30


def read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not readable JSON") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} does not hold a JSON object")
    return content


def read_weights(folder: Path, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The first of the files that exists, all in fp32; a torch file may hold tensors and nothing else."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise InvalidArgumentError(f"{folder} holds none of {', '.join(names)}")
    try:
        content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # pickled content may fail in every way
        raise CorruptFileError(f"{path} cannot be read: {type(error).__name__} {error}") from error
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise CorruptFileError(f"{path} holds something else than named tensors")
    for name, tensor in content.items():
        if not isinstance(name, str) or not _is_plain(tensor):
            raise CorruptFileError(f"{path}: {shown(str(name))} is no plain tensor of numbers")
    return {name: tensor.float().reshape(tensor.shape or (1,)) for name, tensor in content.items()}


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's numbers all lie in the file: a view of one number may be as large as it likes."""
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not is_dense or tensor.is_complex():
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def optional_text(path: Path, config: Mapping[str, Any], name: str) -> str | None:
    """Return a setting that is a text, if it is there."""
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"{path}: {name} is {shown(value)}, not a text")
    return value


def is_finite(value: object) -> bool:
    """Whether a setting is a number that can be computed with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def reject_settings(
    path: Path, config: Mapping[str, Any], rejected: Mapping[str, str], harmless: frozenset[str]
) -> None:
    """Reject settings that change what is computed, and unknown ones; empty ones change nothing."""
    for name, value in config.items():
        if name in harmless or value is None or value is False or value in ({}, [], "", 0):
            continue
        if name in rejected:
            raise InvalidArgumentError(f"{path}: {name} is {shown(value)}; {rejected[name]}")
        raise InvalidArgumentError(
            f"{path}: unknown setting {shown(name)} is {shown(value)}; it is not known what it changes"
        )
