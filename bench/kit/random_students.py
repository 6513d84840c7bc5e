"""Students of a root, and adapters for them, with random weights: good for speed, of no other use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.pooling import POOLED_STATES
from backends.adapters.recipe import AdapterRecipe
from backends.adapters.student_adapters import StudentAdapters, StudentStep
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, StudentWeights, read_students, students_folder, write_students
from backends.root.student_shape import CHAINED, StudentShape, Wiring
from backends.storage import publishing
from bench.kit.random_root import BOTTLENECK, random_adapters


def random_students(
    root: RootFolder,
    count: int,
    layers: int,
    generator: torch.Generator,
    width: int | None = None,
    wiring: Wiring = CHAINED,
) -> StudentSet:
    """Written into the root's folder, and read back; students that were there are replaced.

    Without a width they are as wide as the root's hidden rows.
    """
    shape = StudentShape(count, layers, root.geometry.hidden_size if width is None else width, wiring)
    made = StudentWeights.untrained(shape, root.geometry)
    with torch.no_grad():
        for part in made.files().values():
            for name, weights in part.named_parameters():
                if weights.ndim == 2 or name.endswith("bias"):
                    weights.normal_(std=1 / math.sqrt(weights.shape[-1]), generator=generator)
    with publishing(students_folder(root.path)) as folder:
        write_students(folder, root, shape, made)
    students = read_students(root)
    assert students is not None
    return students


def random_student_adapters(
    students: StudentSet,
    artifact: HplmArtifact,
    generator: torch.Generator,
    recipe: AdapterRecipe = BOTTLENECK,
    best: int | None = None,
) -> StudentAdapters:
    """Make what an hPLM that has its other weights already needs; all students may run unless `best` says how many."""
    count, labels = students.shape.count, len(artifact.head.bias)
    width = POOLED_STATES[artifact.pooling] * students.shape.width
    return student_adapters_of(
        students,
        random_adapters(students.geometry, recipe, generator),
        [Head(_normal(generator, labels, width), _normal(generator, labels)) for _ in range(count)],
        best,
    )


def student_adapters_of(
    students: StudentSet, adapters: AdapterSet, heads: list[Head], best: int | None = None
) -> StudentAdapters:
    """Put parts together; temperatures differ from 1 and from each other."""
    steps = tuple(StudentStep(1.0 + number / 4, 0.5) for number in range(1, len(heads) + 1))
    return StudentAdapters(students.fingerprint, adapters, tuple(heads), steps, best or len(heads))


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])
