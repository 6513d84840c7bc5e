"""Folders that hold a Hugging Face model: its weights files and their checksum."""

from __future__ import annotations

import json
from pathlib import Path

from backends.errors import InvalidArgumentError
from backends.storage import file_checksum, json_checksum

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def weights_files(folder: Path) -> list[Path]:
    """Return the files that hold a model's weights, or none."""
    for name in _WEIGHTS:
        if (folder / name).exists():
            return [folder / name]
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if index.exists():
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            return [folder / shard for shard in sorted(set(shards))]
    return []


def weights_checksum(folder: Path) -> str:
    """Name the exact pretrained weights that a root was made from."""
    files = weights_files(folder)
    if len(files) == 1:
        return file_checksum(files[0])
    return json_checksum({path.name: file_checksum(path) for path in files})


def require_model_folder(folder: Path) -> Path:
    """Return the folder, or raise an error that names the missing files."""
    missing = [] if (folder / "config.json").exists() else ["config.json"]
    files = weights_files(folder)
    missing += [path.name for path in files if not path.exists()] if files else [" or ".join(_WEIGHTS)]
    if missing:
        raise InvalidArgumentError(f"{folder} is not a Hugging Face model folder: {', '.join(missing)} missing")
    return folder


def first_model_folder(folders: list[Path]) -> Path | None:
    return next((folder for folder in folders if weights_files(folder)), None)
