"""What a version and its root have of students on disk."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.adapters.student_adapters import (
    StudentAdapters,
    StudentStep,
    read_student_adapters,
    write_student_adapters,
)
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, StudentWeights, write_students
from backends.root.student_shape import StudentShape
from backends.storage import read_errors_are_clear
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.target import Target


class Students(Target):
    """A root's set of students, and an hPLM's adapters for them, with damage."""

    name = "students"
    cases = 8_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        registry = Registry.open(home)
        self._root = RootFolder(home.root(registry.roots()[0].name))
        registry.close()
        shape = StudentShape(2, 1, self._root.geometry.hidden_size // 2)  # narrow ones have a file more
        folder = scratch / "set"
        folder.mkdir()
        weights = StudentWeights.untrained(shape, self._root.geometry)
        write_students(folder, self._root, shape, weights, [{"cosine": 0.9}])
        self._set = BadFolder(folder, folder)
        fingerprint = StudentSet(folder, self._root).fingerprint
        adapters = scratch / "adapters"
        adapters.mkdir()
        heads = tuple(Head(torch.zeros(3, shape.width), torch.zeros(3)) for _ in range(2))
        steps = (StudentStep(1.0, 0.8), StudentStep(1.1, 0.9))
        write_student_adapters(adapters, StudentAdapters(fingerprint, AdapterSet(), heads, steps, 2, {}))
        self._adapters = BadFolder(adapters, adapters)

    def attempt(self, draw: Draw) -> None:
        damaged = self._set if draw.happens(0.5) else self._adapters
        with damaged.damaged(draw), read_errors_are_clear(damaged.path):
            students = StudentSet(self._set.path, self._root)
            found = read_student_adapters(self._adapters.path)
            if found is not None:
                found.require_of(students)
                found.require_fits(students, students.shape.width, 3)
            if draw.happens(0.3):
                students.layers()
                students.maps()
                students.inputs()
