"""Students without a server: of a bare engine's root, with rows of hPLMs that have adapters in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from backends.adapters.recipe import AdapterRecipe
from backends.engine.compute_pool import ComputePool
from backends.engine.stack import StackSettings
from backends.engine.student_layers import StudentLayers, StudentRow
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from bench.kit.random_root import random_hplm
from bench.kit.random_students import random_student_adapters, random_students


@dataclass(frozen=True)
class StudentRows:
    """Rows of pinned hPLMs, ready to run again and again."""

    layers: StudentLayers
    rows: Sequence[Tensor]
    of_hplms: Sequence[StudentRow]

    def run(self) -> list[Tensor]:
        hplms = [row.hplm for row in self.of_hplms]
        return self.layers.run(self.layers.pack(self.rows, hplms), self.of_hplms)

    def close(self) -> None:
        for row in self.of_hplms:
            self.layers.release(row.hplm)


class BareStudent:
    """One student beside a root, and hPLMs numbered from 1 that differ in their weights only.

    Args:
        root: Has no students of its own.
        layers: Of the student.
        width: Of the student.
        recipe: Of the adapters.
        num_hplms: Number of hPLMs.
        seed: Of all weights.
    """

    def __init__(
        self, root: RootFolder, layers: int, width: int, recipe: AdapterRecipe, num_hplms: int, seed: int
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        made = random_students(root, 1, layers, generator, width)
        self._set = StudentSet(made.path.rename(root.path / f"students-{layers}-{width}-{recipe.rank}"), root)
        plain = random_hplm(root, generator)
        own = (random_student_adapters(self._set, plain, generator, recipe) for _ in range(num_hplms))
        stored = (replace(each, adapters=each.adapters.to(torch.float16)) for each in own)
        self._hplms = [plain.with_students(each, self._set) for each in stored]

    def waiting(self, dtype: str, rows: Sequence[Tensor], threads: int | None = None) -> StudentRows:
        """Pin another hPLM for each row; without `threads` PyTorch's own number of them computes."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        pool = None if threads is None else ComputePool(threads, torch.device(device))
        layers = StudentLayers(self._set, StackSettings(device, dtype, len(self._hplms) + 1), pool)
        ready = [layers.ready(key + 1, partial(self._hplms.__getitem__, key)) for key in range(len(rows))]
        return StudentRows(layers, rows, [StudentRow(hplm, 1) for hplm in ready])
