"""The bank: one folder per hPLM version, `weights.safetensors` and a manifest.

Adapters are stored in bf16, the servers' default precision, so that a slot is filled by copying; an artifact may choose
fp32. The manifest names the root, so adapters are never used with layers of another root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.adapters.ladder import Ladder
from backends.adapters.mapped import MappedPages, load_mapped
from backends.adapters.pooling import NO_POOLING, PAIR_POOLING, POOLED_STATES
from backends.adapters.stored_parts import described, prefixed, restored, restored_head, stored, turned
from backends.adapters.student_adapters import StudentAdapters
from backends.errors import CorruptFileError, FingerprintMismatchError, InvalidArgumentError
from backends.fields import Fields, read_fields
from backends.registry.entries import HplmEntry
from backends.root.student_set import StudentSet
from backends.storage import check_file, file_checksum, write_json, write_tensors

BANK_FORMAT_VERSION = 4
TASKS = ("classification", "ner", "regression")
ADAPTERS_DTYPE = torch.bfloat16
HEAD_DTYPE = torch.float16
_STORED_DTYPES = {"bf16": ADAPTERS_DTYPE, "fp16": torch.float16, "fp32": torch.float32}
_WEIGHTS = "weights.safetensors"
_MANIFEST = "manifest.json"
_VERSION_1_PART = {"name": "bottleneck.attention", "activation": "relu", "norm_first": False}


def weights_bytes(folder: Path) -> int:
    """Return what an hPLM's adapters and heads take on disk, which is about what its slot takes."""
    return (folder / _WEIGHTS).stat().st_size


@dataclass(frozen=True)
class HplmArtifact:
    """The parts that make an hPLM of its root and domain; `origin` tells people where it came from."""

    hplm: str
    root_fingerprint: str
    task: str
    labels: tuple[str, ...]
    pooling: str
    adapters: AdapterSet
    head: Head
    pair: bool = False
    stored_dtype: str = "bf16"
    origin: Mapping[str, Any] = field(default_factory=dict)
    ladder: Ladder | None = None
    students: StudentAdapters | None = None
    pages: MappedPages | None = field(default=None, compare=False, repr=False)
    """Its pages, where it was read from a file."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLED_STATES:
            raise InvalidArgumentError(f"pooling {self.pooling!r} is not one of {', '.join(POOLED_STATES)}")
        if self.stored_dtype not in _STORED_DTYPES:
            raise InvalidArgumentError(f"dtype {self.stored_dtype!r} is not one of {', '.join(_STORED_DTYPES)}")
        if self.task not in TASKS:
            raise InvalidArgumentError(f"task {self.task!r} is not one of {', '.join(TASKS)}")
        if (self.pooling == NO_POOLING) != (self.task == "ner") or (self.pooling == PAIR_POOLING and not self.pair):
            raise InvalidArgumentError(f"the {self.task} task of {self.hplm} cannot have the pooling {self.pooling!r}")
        if self.task != "regression" and not self.labels:
            raise InvalidArgumentError(f"the {self.task} task of {self.hplm} has no labels")
        if (1 if self.task == "regression" else len(self.labels)) != len(self.head.bias):
            raise InvalidArgumentError(f"{self.hplm} has {len(self.labels)} labels but a head of {len(self.head.bias)}")

    def require_of(self, entry: HplmEntry) -> None:
        """Reject an artifact that is in another hPLM's folder."""
        for name, expected in (
            ("hplm", entry.id),
            ("task", entry.task),
            ("labels", entry.labels),
            ("pair", entry.pair),
        ):
            if (found := getattr(self, name)) != expected:
                raise CorruptFileError(
                    f"{entry.folder} holds weights whose {name} is {found!r}, where the registry says {expected!r}"
                )

    def require_fits(self, entry: HplmEntry, hidden_size: int) -> None:
        """Reject a head for states of another width than the root's."""
        if self.head.hidden_size != POOLED_STATES[self.pooling] * hidden_size:
            raise CorruptFileError(
                f"{entry.folder} holds a head for states of {self.head.hidden_size // POOLED_STATES[self.pooling]} "
                f"numbers; its root has {hidden_size}"
            )

    def with_ladder(self, ladder: Ladder | None, num_layers: int) -> HplmArtifact:
        """Add a ladder that fits.

        Raises:
            CorruptFileError: The ladder is of other layers, states or labels.
        """
        if ladder is not None:
            is_regression = self.task == "regression"
            early, shape = ladder.early, (2 if is_regression else len(self.head.bias), self.head.hidden_size)
            if (early.scale is not None) != is_regression:
                raise CorruptFileError(f"the ladder of {self.hplm} is of another task than {self.task}")
            if ladder.ensemble is not None and self.task != "classification":
                raise CorruptFileError(f"the ladder of {self.hplm} mixes answers, which a {self.task} cannot")
            if ladder.pruning is not None and self.task != "classification":
                raise CorruptFileError(f"the ladder of {self.hplm} leaves out words, which a {self.task} needs")
            if not 0 < early.after < num_layers or tuple(early.head.weight.shape) != shape:
                raise CorruptFileError(
                    f"the ladder of {self.hplm} has a head of {list(early.head.weight.shape)} after {early.after} "
                    f"layers, where {list(shape)} after 1 to {num_layers - 1} would fit"
                )
        return replace(self, ladder=ladder)

    def with_students(self, students: StudentAdapters | None, student_set: StudentSet) -> HplmArtifact:
        """Add what makes the hPLM of its root's students.

        Raises:
            CorruptFileError: They are for other layers, states or labels.
            FingerprintMismatchError: They are for another set of students.
        """
        if students is not None:
            students.require_of(student_set)
            width = POOLED_STATES[self.pooling] * student_set.shape.width
            students.require_fits(student_set, width, len(self.head.bias))
        return replace(self, students=students)

    @property
    def size_bytes(self) -> int:
        return self.adapters.size_bytes + self.head.size_bytes


def write_artifact(folder: Path, artifact: HplmArtifact) -> None:
    """Write an artifact into a staging folder.

    Raises:
        InvalidArgumentError: A weight is not finite as stored or as served, or a part is too wide.
    """
    artifact.adapters.require_servable()
    dtype = _STORED_DTYPES[artifact.stored_dtype]
    # A head is small, and computed in fp32. That of a regression holds the scale of its values, which fp16 may not.
    is_exact = artifact.stored_dtype == "fp32" or artifact.task == "regression"
    head_dtype = torch.float32 if is_exact else HEAD_DTYPE
    adapters, head = artifact.adapters.to(dtype), artifact.head.to(head_dtype)
    adapters.require_finite(artifact.hplm)
    adapters.to(ADAPTERS_DTYPE).require_finite(artifact.hplm)
    head.require_finite(f"{artifact.hplm}: head")
    path = weights_path(folder)
    write_tensors(path, {**stored(adapters), **prefixed("head", head)})
    write_json(
        _manifest_path(folder),
        {
            "format_version": BANK_FORMAT_VERSION,
            "hplm": artifact.hplm,
            "root_fingerprint": artifact.root_fingerprint,
            "task": artifact.task,
            "labels": list(artifact.labels),
            "pooling": artifact.pooling,
            "pair": artifact.pair,
            "dtype": artifact.stored_dtype,
            "parts": described(adapters),
            "head": {"activation": head.activation},
            "origin": dict(artifact.origin),
            "size_bytes": path.stat().st_size,
            "weights_checksum": file_checksum(path),
        },
    )


def read_artifact(folder: Path, root_fingerprint: str, was_checked: bool = False) -> HplmArtifact:
    """Map an artifact into memory; one made for another root is rejected.

    The checksum is compared unless it `was_checked` before: published files never change.
    """
    manifest = read_fields(_manifest_path(folder), BANK_FORMAT_VERSION)
    if (of_root := manifest.text("root_fingerprint")) != root_fingerprint:
        raise FingerprintMismatchError(
            f"the adapter of {manifest.text('hplm')} was made for root {of_root}, but its root is {root_fingerprint}"
        )
    path = weights_path(folder)
    check_file(path, manifest.whole("size_bytes"), None if was_checked else manifest.text("weights_checksum"))
    tensors = load_mapped(path)
    pages = MappedPages.of(path, tensors.values())
    version = manifest.whole("format_version")
    if version == 1:
        manifest, tensors = _as_version_2(manifest, tensors)
    if version <= 2:
        tensors = {name: turned(tensor) for name, tensor in tensors.items()}
    try:
        return HplmArtifact(
            hplm=manifest.text("hplm"),
            root_fingerprint=of_root,
            task=manifest.text("task"),
            labels=manifest.texts("labels"),
            pooling=manifest.text("pooling"),
            pair=manifest.flag("pair"),
            adapters=restored(manifest.parts("parts"), tensors),
            head=restored_head("head", tensors, manifest.part("head")),
            stored_dtype=manifest.text("dtype"),
            origin=manifest.mapping("origin"),
            pages=pages,
        )
    except InvalidArgumentError as error:
        raise CorruptFileError(f"{path} does not hold what its manifest names: {error}") from error


def weights_path(folder: Path) -> Path:
    return folder / _WEIGHTS


def state_of(folder: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return modification time and size of each file, None for a missing one; they differ once a file was replaced."""
    return tuple(_state_of_file(path) for path in (weights_path(folder), _manifest_path(folder)))


def _state_of_file(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _manifest_path(folder: Path) -> Path:
    return folder / _MANIFEST


def _as_version_2(manifest: Fields, tensors: Mapping[str, Tensor]) -> tuple[Fields, dict[str, Tensor]]:
    """Version 1 knew one kind: a bottleneck after the attention, in fp16, and a linear head."""
    part = _VERSION_1_PART["name"]
    renamed = {key.replace("adapter.", f"{part}.", 1): tensor for key, tensor in tensors.items()}
    added = {"dtype": "fp16", "pair": False, "parts": [_VERSION_1_PART], "head": {}, "origin": {}}
    content = {name: manifest.value(name) for name in manifest.names()}
    return Fields({**content, **added}, manifest.where), renamed
