"""A root's students on disk: `roots/<root>/students/`, short stacks that all tenants of the root share.

The first student reads the hidden rows that the upper layers read, a narrow one through a map into its own width. In a
chain each other one reads what the one before computed, and the output of each, through its own map, is what the upper
layers say; students in parallel read the same rows, and their outputs add up to that. The first m of them are an answer
too. The set has a fingerprint of its own, over the root's and its weights: adapters for students name it, so they never
run in students of another set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from backends.errors import (
    CorruptFileError,
    FingerprintMismatchError,
    HplmError,
    InvalidArgumentError,
)
from backends.fields import read_fields
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder, float16_state, load_weights
from backends.root.student_shape import StudentShape
from backends.root.upper import UpperLayers
from backends.storage import check_file, file_checksum, write_json, write_tensors

STUDENTS_FORMAT_VERSION = 3
"""3 is of chains and 2 of narrow students, which releases that read less do not know; all others are written as 1."""
_NARROW, _OF_FULL_WIDTH = 2, 1
_MANIFEST = "manifest.json"
_LAYERS, _MAPS, _INPUTS = "layers.safetensors", "maps.safetensors", "inputs.safetensors"


class InputMaps(nn.ModuleList):
    """A linear map for each narrow student that reads the root's hidden rows, from these to its own width.

    Of a chain that is the first one. Students as wide as the rows read these as they are: then there are no maps.
    """

    def __init__(self, shape: StudentShape, hidden_size: int) -> None:
        count = 1 if shape.is_chained else shape.count
        super().__init__(nn.Linear(hidden_size, shape.width) for _ in range(count * shape.is_narrow(hidden_size)))

    def enter(self, student: int, hidden: Tensor) -> Tensor:
        """Return hidden rows, or in a chain the states of the student before, as a student reads them.

        Shape: `[..., H]` or `[..., h]` → `[..., h]`
        """
        if student >= len(self):
            return hidden
        entered: Tensor = self[student](hidden)
        return entered


class OutputMaps(nn.ModuleList):
    """A linear map for each student, from its states to the upper layers' final ones, or to its summand of these.

    Servers need none of them: an hPLM's heads read the students' own states.
    """

    def __init__(self, shape: StudentShape, hidden_size: int) -> None:
        super().__init__(nn.Linear(shape.width, hidden_size) for _ in range(shape.count))


@dataclass(frozen=True)
class StudentWeights:
    """All weights of a set; layer l of student k, both counted from 0, is layer k·N + l."""

    layers: UpperLayers
    maps: OutputMaps
    inputs: InputMaps

    @classmethod
    def untrained(cls, shape: StudentShape, root: RootGeometry) -> StudentWeights:
        hidden_size = root.hidden_size
        return cls(UpperLayers(shape.geometry(root)), OutputMaps(shape, hidden_size), InputMaps(shape, hidden_size))

    def files(self) -> dict[str, nn.Module]:
        """Return the modules by the names of their files."""
        inputs = {_INPUTS: self.inputs} if len(self.inputs) else {}
        return {_LAYERS: self.layers, _MAPS: self.maps, **inputs}


class StudentSet:
    """Reads a root's students; the manifest is checked at once, weights when they are read.

    Attributes:
        shape: Sizes.
        geometry: Of all students' layers as one stack.
        depth: What one student costs, as a share of the root's upper layers.
        hidden_size: Width of the root's hidden rows, which students read.
        fingerprint: Names these weights of this root.
        fidelity: Figures of the first student, of the first two, and so on; for people.
        origin: How the set was made; for people.
    """

    def __init__(self, path: Path, root: RootFolder) -> None:
        """Read the manifest.

        Raises:
            FileError: It is damaged, of another root, or of a newer format.
        """
        self.path = path
        fields = read_fields(path / _MANIFEST, STUDENTS_FORMAT_VERSION)
        if (of_root := fields.text("root_fingerprint")) != root.fingerprint:
            raise FingerprintMismatchError(f"{path} holds students of root {of_root}, not {root.fingerprint}")
        try:
            self.shape = StudentShape.read(fields.part("shape"))
            self.geometry = self.shape.geometry(root.geometry)
            self.depth = self.shape.depth(root.geometry)
        except InvalidArgumentError as error:
            raise CorruptFileError(f"{path} describes no students: {error}") from error
        self.fingerprint = fields.text("fingerprint")
        self.fidelity: tuple[Mapping[str, float], ...] = tuple(
            {name: figures.number(name) for name in figures.names()} for figures in fields.parts("fidelity")
        )
        self.origin = fields.mapping("origin")
        files = fields.part("files")
        self.hidden_size = root.geometry.hidden_size
        inputs = (_INPUTS,) if self.shape.is_narrow(self.hidden_size) else ()
        self._files = {name: files.part(name) for name in (_LAYERS, _MAPS, *inputs)}

    @property
    def served_bytes(self) -> int:
        """What servers read of it, in 16 bits: all but the output maps."""
        return sum(entry.whole("size_bytes") for name, entry in self._files.items() if name != _MAPS)

    def layers(self) -> UpperLayers:
        """Read the layers of all students: layer l of student k, both counted from 0, is layer k·N + l."""
        self._check(_LAYERS)
        return load_weights(lambda: UpperLayers(self.geometry), self.path / _LAYERS)

    def maps(self) -> OutputMaps:
        self._check(_MAPS)
        return load_weights(lambda: OutputMaps(self.shape, self.hidden_size), self.path / _MAPS)

    def inputs(self) -> InputMaps:
        """Read the maps into the width of narrow students; none where they are as wide as the hidden rows."""
        if not self.shape.is_narrow(self.hidden_size):
            return InputMaps(self.shape, self.hidden_size)
        self._check(_INPUTS)
        return load_weights(lambda: InputMaps(self.shape, self.hidden_size), self.path / _INPUTS)

    def verify(self) -> None:
        """Compare every file with its checksum."""
        for file_name in self._files:
            self._check(file_name)

    def _check(self, file_name: str) -> None:
        entry = self._files[file_name]
        check_file(self.path / file_name, entry.whole("size_bytes"), entry.text("checksum"))


def students_folder(root: Path) -> Path:
    return root / "students"


def read_students(root: RootFolder) -> StudentSet | None:
    """Read a root's students, if it has some; raises as `StudentSet`."""
    folder = students_folder(root.path)
    return StudentSet(folder, root) if folder.exists() else None


def write_students(
    folder: Path,
    root: RootFolder,
    shape: StudentShape,
    weights: StudentWeights,
    fidelity: Sequence[Mapping[str, float]] = (),
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Write a set into an empty (staging) folder and return its fingerprint.

    Raises:
        HplmError: A weight is not finite in fp16.
    """
    files = {}
    for name, part in weights.files().items():
        state = float16_state(part)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
            raise HplmError(f"students of root {root.manifest.name!r}: weights are not finite in fp16")
        write_tensors(folder / name, state)
        files[name] = {"size_bytes": (folder / name).stat().st_size, "checksum": file_checksum(folder / name)}
    checksums = [str(files[name]["checksum"]) for name in sorted(files)]
    named = [root.fingerprint, repr(sorted(asdict(shape).items())), *checksums]
    fingerprint = xxhash.xxh3_64_hexdigest("\n".join(named).encode())
    write_json(
        folder / _MANIFEST,
        {
            "format_version": _format_of(shape, _INPUTS in files),
            "root_fingerprint": root.fingerprint,
            "fingerprint": fingerprint,
            "shape": asdict(shape),
            "files": files,
            "fidelity": [dict(figures) for figures in fidelity],
            "origin": dict(origin or {}),
        },
    )
    return fingerprint


def _format_of(shape: StudentShape, is_narrow: bool) -> int:
    if shape.is_chained:
        return STUDENTS_FORMAT_VERSION
    return _NARROW if is_narrow else _OF_FULL_WIDTH
