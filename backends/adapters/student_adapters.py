"""What makes an hPLM of its root's students: `students.json` and `students.safetensors` beside a version's weights.

Every student has adapters and a head of the hPLM's own. The answer of the level with m students are in a chain the
logits of head m, in parallel those of the first m heads added up. A version without these files is answered by the
upper layers only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet, require_part_fits
from backends.adapters.head import Head
from backends.adapters.mapped import load_mapped
from backends.adapters.stored_parts import described, prefixed, restored, restored_head, stored
from backends.errors import (
    CorruptFileError,
    InvalidArgumentError,
    OtherStudentsError,
)
from backends.fields import read_fields
from backends.root.student_set import StudentSet
from backends.storage import check_file, file_checksum, write_json, write_tensors

STUDENT_ADAPTERS_FORMAT_VERSION = 1
_MANIFEST = "students.json"
_WEIGHTS = "students.safetensors"
STUDENT_FILES = (_MANIFEST, _WEIGHTS)
_ADAPTERS_DTYPE, _HEAD_DTYPE = torch.bfloat16, torch.float16


def student_weights_bytes(folder: Path) -> int:
    """Return what an hPLM's parts for students take on disk, which is about what its slot among them takes."""
    return (folder / _WEIGHTS).stat().st_size


@dataclass(frozen=True)
class StudentStep:
    """The level with m students.

    Attributes:
        temperature: Makes its confidences true; an hPLM that answers with numbers has 1.
        dev_score: The task's main metric on the dev texts.
    """

    temperature: float
    dev_score: float


@dataclass(frozen=True)
class StudentAdapters:
    """The adapters and heads of all students of a set, for one hPLM.

    Attributes:
        set_fingerprint: Of the student set; adapters of another set are never used.
        adapters: Over the layers of all students, without an entrance: student k's layer l, both counted from 0, is
            layer k·N + l, as in `StudentSet.layers`.
        heads: One for each student; each pools as the hPLM's own head does.
        steps: The levels with one student, with two, and so on.
        best: The number of students that is best on the dev texts; no request may ask for more.
        origin: How they were made; for people.
    """

    set_fingerprint: str
    adapters: AdapterSet
    heads: tuple[Head, ...]
    steps: tuple[StudentStep, ...]
    best: int
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.heads) != len(self.steps) or not 1 <= self.best <= len(self.heads):
            raise InvalidArgumentError(
                f"{len(self.heads)} students' heads do not go with {len(self.steps)} levels, the best of which has "
                f"{self.best} students"
            )
        if self.adapters.entrance is not None:
            raise InvalidArgumentError("students have no entrance: all of them read the same hidden rows")
        for step in self.steps:
            if not (math.isfinite(step.temperature) and step.temperature > 0):
                raise InvalidArgumentError(f"a temperature is a positive number, not {step.temperature}")

    def logits(self, pooled: Sequence[Tensor]) -> Tensor:
        """Sum the logits of the first students.

        Shape: `[..., P]` of each, what its head reads → `[..., C]`
        """
        heads = zip(self.heads, pooled, strict=False)
        return torch.stack([head.logits(states) for head, states in heads]).sum(dim=0)

    def require_of(self, student_set: StudentSet) -> None:
        if self.set_fingerprint != student_set.fingerprint:
            raise OtherStudentsError(
                f"adapters are for students {self.set_fingerprint}, but the root's are {student_set.fingerprint}"
            )

    def require_fits(self, student_set: StudentSet, pooled_width: int, num_outputs: int) -> None:
        """Reject adapters for other layers, and heads for other states or labels.

        Raises:
            CorruptFileError: See above.
        """
        if len(self.heads) != student_set.shape.count:
            raise CorruptFileError(f"{len(self.heads)} heads are there for {student_set.shape.count} students")
        for head in self.heads:
            if (head.hidden_size, len(head.bias)) != (pooled_width, num_outputs):
                raise CorruptFileError(
                    f"a student's head reads {head.hidden_size} numbers and gives {len(head.bias)}, where "
                    f"{pooled_width} and {num_outputs} would fit"
                )
        try:
            for key, part in self.adapters.parts().items():
                require_part_fits(key, part, student_set.geometry)
        except InvalidArgumentError as error:
            raise CorruptFileError(f"students' adapters do not fit: {error}") from error

    @property
    def size_bytes(self) -> int:
        return self.adapters.size_bytes + sum(head.size_bytes for head in self.heads)


def write_student_adapters(folder: Path, students: StudentAdapters) -> None:
    """Write them beside a version's weights, into a staging folder.

    Raises:
        InvalidArgumentError: A weight is not finite as stored, or a part is too wide.
    """
    students.adapters.require_servable()
    # A head of one output is that of a regression: it holds the scale of the values, which fp16 may not.
    head_dtype = torch.float32 if len(students.heads[0].bias) == 1 else _HEAD_DTYPE
    adapters, heads = students.adapters.to(_ADAPTERS_DTYPE), [head.to(head_dtype) for head in students.heads]
    adapters.require_finite("students")
    tensors = stored(adapters)
    for number, head in enumerate(heads, start=1):
        head.require_finite(f"head of student {number}")
        tensors |= prefixed(_head_name(number), head)
    path = folder / _WEIGHTS
    write_tensors(path, tensors)
    write_json(
        folder / _MANIFEST,
        {
            "format_version": STUDENT_ADAPTERS_FORMAT_VERSION,
            "set_fingerprint": students.set_fingerprint,
            "parts": described(adapters),
            "heads": [{"activation": head.activation} for head in heads],
            "steps": [{"temperature": step.temperature, "dev_score": step.dev_score} for step in students.steps],
            "best": students.best,
            "origin": dict(students.origin),
            "size_bytes": path.stat().st_size,
            "weights_checksum": file_checksum(path),
        },
    )


def read_student_adapters(folder: Path) -> StudentAdapters | None:
    """Map what a version has for its root's students into memory, if it has something.

    Raises:
        FileError: The files are damaged, or of a newer format.
    """
    path, weights = folder / _MANIFEST, folder / _WEIGHTS
    if not path.exists():
        return None
    manifest = read_fields(path, STUDENT_ADAPTERS_FORMAT_VERSION)
    check_file(weights, manifest.whole("size_bytes"), manifest.text("weights_checksum"))
    tensors = load_mapped(weights)
    heads = enumerate(manifest.parts("heads"), start=1)
    try:
        return StudentAdapters(
            manifest.text("set_fingerprint"),
            restored(manifest.parts("parts"), tensors),
            tuple(restored_head(_head_name(number), tensors, settings) for number, settings in heads),
            tuple(
                StudentStep(step.positive("temperature"), step.number("dev_score")) for step in manifest.parts("steps")
            ),
            manifest.whole("best", 1),
            manifest.mapping("origin"),
        )
    except InvalidArgumentError as error:
        raise CorruptFileError(f"{path} holds nothing for students: {error}") from error


def _head_name(number: int) -> str:
    return f"head.{number}"
