"""The files of a saved adapter: configuration as JSON, weights as safetensors or as a plain torch file."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from backends.errors import CorruptFileError, InvalidArgumentError


def read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidArgumentError(f"{path} is missing") from error
    except ValueError as error:
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
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CorruptFileError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise CorruptFileError(f"{path} holds something else than named tensors")
    return {name: tensor.float().reshape(tensor.shape or (1,)) for name, tensor in content.items()}


def reject_settings(
    path: Path, config: Mapping[str, Any], rejected: Mapping[str, str], harmless: frozenset[str]
) -> None:
    """Reject settings that change what is computed, and unknown ones; empty ones change nothing."""
    for name, value in config.items():
        if name in harmless or value is None or value is False or value in ({}, [], "", 0):
            continue
        if name in rejected:
            raise InvalidArgumentError(f"{path}: {name} is {value!r}; {rejected[name]}")
        raise InvalidArgumentError(f"{path}: unknown setting {name!r} is {value!r}; it is not known what it changes")
