"""The bank: one folder per hPLM version, `weights.safetensors` and a manifest.

Weights are kept in fp16; the manifest names the root, so an adapter never meets layers that it was not made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from backends.adapters.bottleneck import BottleneckAdapter, Head
from backends.errors import CorruptFileError, FingerprintMismatchError, FormatVersionError, InvalidArgumentError
from backends.storage import check_file, file_checksum, read_json, write_json, write_tensors

BANK_FORMAT_VERSION = 1
POOLINGS = ("cls", "mean")
_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class HplmArtifact:
    """Everything that makes one hPLM out of its root and domain."""

    hplm: str
    root_fingerprint: str
    task: str
    labels: tuple[str, ...]
    pooling: str
    adapter: BottleneckAdapter
    head: Head

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise InvalidArgumentError(f"pooling {self.pooling!r} is not one of {', '.join(POOLINGS)}")
        if self.head.weight.shape != (len(self.head.bias), self.adapter.hidden_size):
            raise InvalidArgumentError(f"the head of {self.hplm} does not fit its adapter and its own bias")
        if len(self.labels) != len(self.head.bias):
            raise InvalidArgumentError(f"{self.hplm} has {len(self.labels)} labels but a head of {len(self.head.bias)}")

    @property
    def size_bytes(self) -> int:
        return sum(t.nbytes for part in (self.adapter, self.head) for t in part.named().values())


def write_artifact(folder: Path, artifact: HplmArtifact) -> None:
    """Write an artefact into a staging folder; weights that are not finite are refused."""
    adapter, head = artifact.adapter.to(torch.float16), artifact.head.to(torch.float16)
    adapter.require_finite(artifact.hplm)
    head.require_finite(artifact.hplm)
    tensors = {f"adapter.{name}": tensor for name, tensor in adapter.named().items()}
    tensors |= {f"head.{name}": tensor for name, tensor in head.named().items()}
    path = folder / _WEIGHTS
    write_tensors(path, tensors)
    write_json(
        folder / "manifest.json",
        {
            "format_version": BANK_FORMAT_VERSION,
            "kind": "bottleneck",
            "hplm": artifact.hplm,
            "root_fingerprint": artifact.root_fingerprint,
            "task": artifact.task,
            "labels": list(artifact.labels),
            "pooling": artifact.pooling,
            "size_bytes": path.stat().st_size,
            "weights_checksum": file_checksum(path),
        },
    )


def read_artifact(folder: Path, root_fingerprint: str) -> HplmArtifact:
    """Read and check an artefact; it is refused if it was made for another root."""
    manifest = read_json(folder / "manifest.json")
    if manifest["format_version"] > BANK_FORMAT_VERSION:
        raise FormatVersionError(
            f"{folder} has format version {manifest['format_version']}; this release reads up to {BANK_FORMAT_VERSION}"
        )
    if manifest["root_fingerprint"] != root_fingerprint:
        raise FingerprintMismatchError(
            f"the adapter of {manifest['hplm']} was made for root {manifest['root_fingerprint']}, "
            f"but its root is {root_fingerprint}"
        )
    path = folder / _WEIGHTS
    check_file(path, manifest["size_bytes"], manifest["weights_checksum"])
    tensors = load_file(path)
    try:
        adapter = BottleneckAdapter(
            **{k.removeprefix("adapter."): v for k, v in tensors.items() if k.startswith("adapter.")}
        )
        head = Head(**{k.removeprefix("head."): v for k, v in tensors.items() if k.startswith("head.")})
    except TypeError as error:
        raise CorruptFileError(f"{path} does not hold the tensors of an adapter and a head") from error
    return HplmArtifact(
        hplm=manifest["hplm"],
        root_fingerprint=manifest["root_fingerprint"],
        task=manifest["task"],
        labels=tuple(manifest["labels"]),
        pooling=manifest["pooling"],
        adapter=adapter,
        head=head,
    )
