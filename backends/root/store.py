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
from torch import Tensor, nn

from backends.errors import CorruptFileError, HplmError
from backends.fields import read_fields
from backends.root.geometry import RootGeometry
from backends.root.lower import Aggregation, FragmentEncoder
from backends.root.tokenizer import RootTokenizer
from backends.root.upper import UpperLayers
from backends.storage import check_file, file_checksum, read_tensors, write_json, write_tensors

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
        fields = read_fields(path / "manifest.json", ROOT_FORMAT_VERSION)
        self._files = fields.part("files")
        self.manifest = RootManifest(
            name=fields.text("name"),
            geometry=RootGeometry.read(fields.part("geometry")),
            fingerprint=fields.text("fingerprint"),
            origin=dict(fields.mapping("origin")),
            fidelity=dict(fields.mapping("fidelity")),
        )

    @property
    def geometry(self) -> RootGeometry:
        return self.manifest.geometry

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def upper_bytes(self) -> int:
        """What the upper layers take on disk, in 16 bits."""
        return self._files.part("upper.safetensors").whole("size_bytes")

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
        for file_name in self._files.names():
            self._check(file_name)

    def _check(self, file_name: str) -> None:
        entry = self._files.part(file_name)
        check_file(self.path / file_name, entry.whole("size_bytes"), entry.text("checksum"))

    def _load(self, name: str, part_of: Callable[[RootGeometry], PartT]) -> PartT:
        file_name = f"{name}.safetensors"
        self._check(file_name)
        return load_weights(lambda: part_of(self.geometry), self.path / file_name)


def load_weights(make: Callable[[], PartT], path: Path) -> PartT:
    """Fill a new module from a safetensors file, in fp32, frozen and in evaluation mode.

    Raises:
        CorruptFileError: The file holds other weights; no memory is taken for what it cannot hold.
    """
    with torch.device("meta"):  # which takes neither memory nor random numbers
        part = make()
    needed_bytes = sum(tensor.numel() for tensor in part.state_dict().values())
    if needed_bytes > path.stat().st_size:  # a number takes a byte at least
        raise CorruptFileError(f"{path} is too small for the weights of this geometry")
    try:
        state = {key: tensor.float() for key, tensor in read_tensors(path).items()}
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
