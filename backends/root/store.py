"""A root on disk: `roots/<name>/` with its tokenizer, three weight files and a manifest with the fingerprint.

The fingerprint covers sizes, tokenizer and all weights. Tables and adapters name it, and it is
compared when they are loaded: a table of one root never meets another.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from safetensors.torch import load_file
from torch import Tensor, nn

from backends.errors import CorruptFileError, FormatVersionError, HplmError
from backends.root.geometry import RootGeometry
from backends.root.lower import Aggregation, FragmentEncoder
from backends.root.tokenizer import RootTokenizer
from backends.root.upper import UpperLayers
from backends.storage import check_file, file_checksum, read_json, write_json, write_tensors

ROOT_FORMAT_VERSION = 1
PartT = TypeVar("PartT", bound=nn.Module)
_WEIGHT_FILES = ("lower", "aggregation", "upper")


@dataclass(frozen=True)
class RootManifest:
    """A root without its weights; `origin` and `fidelity` are for people."""

    name: str
    geometry: RootGeometry
    fingerprint: str
    origin: dict[str, Any] = field(default_factory=dict)
    fidelity: dict[str, Any] = field(default_factory=dict)


class RootFolder:
    """Reads a root; the manifest is checked at once, weights when they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = read_json(path / "manifest.json")
        if content["format_version"] > ROOT_FORMAT_VERSION:
            raise FormatVersionError(
                f"root {path.name} has format version {content['format_version']}; "
                f"this release reads up to {ROOT_FORMAT_VERSION}, so upgrade it"
            )
        self._files: dict[str, dict[str, Any]] = content["files"]
        self.manifest = RootManifest(
            name=content["name"],
            geometry=RootGeometry.from_json(content["geometry"]),
            fingerprint=content["fingerprint"],
            origin=content["origin"],
            fidelity=content["fidelity"],
        )

    @property
    def geometry(self) -> RootGeometry:
        return self.manifest.geometry

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    def tokenizer(self) -> RootTokenizer:
        self._check("tokenizer.json")
        return RootTokenizer(self.path / "tokenizer.json", self.geometry.max_tokens, self.geometry.pad_id)

    def lower(self) -> FragmentEncoder:
        return self._load("lower", FragmentEncoder)

    def aggregation(self) -> Aggregation:
        return self._load("aggregation", Aggregation)

    def upper(self) -> UpperLayers:
        return self._load("upper", UpperLayers)

    def verify(self) -> None:
        """Compare every file with its checksum."""
        for file_name in self._files:
            self._check(file_name)

    def _check(self, file_name: str) -> None:
        entry = self._files[file_name]
        check_file(self.path / file_name, entry["size_bytes"], entry["checksum"])

    def _load(self, name: str, part_of: Callable[[RootGeometry], PartT]) -> PartT:
        file_name = f"{name}.safetensors"
        self._check(file_name)
        return load_weights(part_of(self.geometry), self.path / file_name)


def load_weights(part: PartT, path: Path) -> PartT:
    """Fill a module from a safetensors file, in fp32, frozen and in evaluation mode."""
    try:
        state = {key: tensor.float() for key, tensor in load_file(path).items()}
        part.load_state_dict(state, assign=True)
    except (RuntimeError, ValueError) as error:
        raise CorruptFileError(f"{path} does not hold the weights of this geometry: {error}") from error
    return part.eval().requires_grad_(False)


def float16_state(part: nn.Module) -> dict[str, Tensor]:
    """A module's weights in fp16, as roots are stored."""
    return {key: tensor.detach().to(torch.float16) for key, tensor in part.state_dict().items()}


def write_root(
    folder: Path,
    name: str,
    geometry: RootGeometry,
    tokenizer_json: Path,
    parts: dict[str, nn.Module],
    origin: dict[str, Any],
    fidelity: dict[str, Any],
) -> str:
    """Write a root into an empty (staging) folder and return its fingerprint."""
    shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
    for part_name in _WEIGHT_FILES:
        state = float16_state(parts[part_name])
        if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
            raise HplmError(f"root {name!r}: weights of its part {part_name!r} are not finite in fp16")
        write_tensors(folder / f"{part_name}.safetensors", state)
    files = {
        file_name: {
            "size_bytes": (folder / file_name).stat().st_size,
            "checksum": file_checksum(folder / file_name),
        }
        for file_name in ["tokenizer.json", *(f"{part}.safetensors" for part in _WEIGHT_FILES)]
    }
    fingerprint = _fingerprint(geometry, files)
    write_json(
        folder / "manifest.json",
        {
            "format_version": ROOT_FORMAT_VERSION,
            "name": name,
            "geometry": geometry.to_json(),
            "fingerprint": fingerprint,
            "files": files,
            "origin": origin,
            "fidelity": fidelity,
        },
    )
    return fingerprint


def _fingerprint(geometry: RootGeometry, files: dict[str, dict[str, Any]]) -> str:
    parts = [repr(sorted(geometry.to_json().items()))] + [files[name]["checksum"] for name in sorted(files)]
    return xxhash.xxh3_64_hexdigest("\n".join(parts).encode())
