"""A root's students on disk: `roots/<root>/students/`, short stacks that all tenants of the root share.

Each student reads the hidden rows that the upper layers read. Their outputs, each through its own map, add up to what
the upper layers say; the first m of them are an answer too. The set has a fingerprint of its own, over the root's and
its weights: adapters for students name it, so they never run in students of another set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from backends.fields import Fields, read_fields
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder, float16_state, load_weights
from backends.root.upper import UpperLayers
from backends.storage import check_file, file_checksum, write_json, write_tensors
from backends.student_levels import MOST_STUDENTS

STUDENTS_FORMAT_VERSION = 1
PARALLEL = "parallel"
"""The wiring in which every student reads the hidden rows, so that all of them may run at once."""
_MANIFEST = "manifest.json"
_LAYERS, _MAPS = "layers.safetensors", "maps.safetensors"
_MOST = {"count": MOST_STUDENTS, "layers": 1 << 10, "width": 1 << 16}


@dataclass(frozen=True)
class StudentShape:
    """The sizes of a set: `count` students of `layers` layers, `width` numbers wide."""

    count: int
    layers: int
    width: int
    wiring: str = PARALLEL

    def __post_init__(self) -> None:
        for name in ("count", "layers", "width"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"the {name} of students must be at least 1, not {getattr(self, name)}")
        if self.wiring != PARALLEL:
            raise InvalidArgumentError(f"the wiring {self.wiring!r} of students is not known; {PARALLEL!r} is")

    @classmethod
    def read(cls, stored: Fields) -> StudentShape:
        count, layers, width = (stored.whole(name, 1, most) for name, most in _MOST.items())
        return cls(count, layers, width, stored.text("wiring") if "wiring" in stored else PARALLEL)

    def geometry(self, root: RootGeometry) -> RootGeometry:
        """Return the sizes of all students' layers as one stack, in which those of `span` are one student's.

        Raises:
            InvalidArgumentError: The students do not fit the root.
        """
        if self.width != root.hidden_size:
            raise InvalidArgumentError(
                f"students are as wide as the hidden rows of their root, {root.hidden_size} numbers, not {self.width}"
            )
        return replace(root, num_upper_layers=self.count * self.layers)

    def depth(self, root: RootGeometry) -> float:
        """Return what one student costs, as a share of the root's upper layers."""
        return self.layers / root.num_upper_layers

    def span(self, student: int) -> range:
        """Return the layers of a student, counted from 0."""
        return range(student * self.layers, (student + 1) * self.layers)


class OutputMaps(nn.ModuleList):
    """A linear map for each student, from its states to its summand of the upper layers' final states.

    Servers need none of them: an hPLM's heads read the students' own states.
    """

    def __init__(self, shape: StudentShape, hidden_size: int) -> None:
        super().__init__(nn.Linear(shape.width, hidden_size) for _ in range(shape.count))

    def total(self, states: Sequence[Tensor]) -> Tensor:
        """Sum what the first students say.

        Shape: `[..., h]` of each → `[..., H]`
        """
        mapped = [self[student](state) for student, state in enumerate(states)]
        return torch.stack(mapped).sum(dim=0)


class StudentSet:
    """Reads a root's students; the manifest is checked at once, weights when they are read.

    Attributes:
        shape: Sizes.
        geometry: Of all students' layers as one stack.
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
        except InvalidArgumentError as error:
            raise CorruptFileError(f"{path} describes no students: {error}") from error
        self.fingerprint = fields.text("fingerprint")
        self.fidelity: tuple[Mapping[str, float], ...] = tuple(
            {name: figures.number(name) for name in figures.names()} for figures in fields.parts("fidelity")
        )
        self.origin = fields.mapping("origin")
        files = fields.part("files")
        self._files = {name: files.part(name) for name in (_LAYERS, _MAPS)}
        self._hidden_size = root.geometry.hidden_size

    def layers(self) -> UpperLayers:
        """Read the layers of all students: layer l of student k, both counted from 0, is layer k·N + l."""
        self._check(_LAYERS)
        return load_weights(lambda: UpperLayers(self.geometry), self.path / _LAYERS)

    def maps(self) -> OutputMaps:
        self._check(_MAPS)
        return load_weights(lambda: OutputMaps(self.shape, self._hidden_size), self.path / _MAPS)

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
    layers: UpperLayers,
    maps: OutputMaps,
    fidelity: Sequence[Mapping[str, float]] = (),
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Write a set into an empty (staging) folder and return its fingerprint.

    Raises:
        HplmError: A weight is not finite in fp16.
    """
    files = {}
    for name, part in ((_LAYERS, layers), (_MAPS, maps)):
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
            "format_version": STUDENTS_FORMAT_VERSION,
            "root_fingerprint": root.fingerprint,
            "fingerprint": fingerprint,
            "shape": asdict(shape),
            "files": files,
            "fidelity": [dict(figures) for figures in fidelity],
            "origin": dict(origin or {}),
        },
    )
    return fingerprint
