"""Folders that hold a Hugging Face model: its weights files and their checksum."""

from __future__ import annotations

import json
from pathlib import Path

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.fields import Fields
from backends.storage import file_checksum, json_checksum

_LONGEST_NAME = 255
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def weights_files(folder: Path) -> list[Path]:
    """Return the files that hold a model's weights, or none."""
    for name in _WEIGHTS:
        if (folder / name).exists():
            return [folder / name]
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if index.exists():
            return [folder / shard for shard in sorted(_shards(index))]
    return []


def _shards(index: Path) -> set[str]:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{index} is not readable JSON") from error
    shards = Fields(content, str(index)).part("weight_map")
    names = {shards.text(name) for name in shards.names()}
    if any("/" in name or "\0" in name or len(name.encode(errors="replace")) > _LONGEST_NAME for name in names):
        raise CorruptFileError(f"{index} names files that do not lie beside it")
    return names


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
