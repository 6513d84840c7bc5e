"""What all peers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from bench.kit.peers.bert import Bert

Dtype = Literal["fp32", "bf16", "int8"]
WEIGHT_BYTES: dict[Dtype, int] = {"fp32": 4, "bf16": 2, "int8": 1}
INSTALLATION = "pip install '.[peers]'"


class LoadedModel(Protocol):
    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Shape: hidden `[B, L, H]` and mask `[B, 1, 1, L]` in fp32 → logits `[B, labels]`."""
        ...


class Runtime(Protocol):
    """A way to serve a model.

    Attributes:
        packages: Modules that must be installed.
    """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> Dtype: ...

    @property
    def packages(self) -> Sequence[str]: ...

    def prepare(self, model: Bert, rows: Sequence[Tensor], folder: Path) -> Path:
        """Write the file that a server loads; `rows` are what quantising may be calibrated on."""
        ...

    def load(self, path: Path) -> LoadedModel: ...


def missing_packages(runtime: Runtime) -> list[str]:
    return [package for package in runtime.packages if find_spec(package) is None]


def split_installed(runtimes: Sequence[Runtime]) -> tuple[list[Runtime], list[str]]:
    """Return those that can run here, and a line for each of the others."""
    missing = {runtime.name: missing_packages(runtime) for runtime in runtimes}
    here = [runtime for runtime in runtimes if not missing[runtime.name]]
    lines = [
        f"{name} is left out: {', '.join(packages)} not installed ({INSTALLATION})"
        for name, packages in missing.items()
        if packages
    ]
    return here, lines
