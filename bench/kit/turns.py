"""Servers whose steps do not run side by side: the gain of pipelining is measured against them.

Usage:
    code = code_with_turns(folder, Ablation(upper_turns=path, stages_ahead=False))
    Serving("synchronised", code=code)
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from backends.engine.loop import ServeLoop
from backends.engine.running import BatchRunner
from backends.engine.staged_batch import StagedBatch
from bench.kit.model_code import append_to_model
from builder.export.repository import installed_code


class FileLock:
    """Processes that name the same file take turns; without a file none waits for another.

    Usage:
        with lock.held():
            ...
    """

    def __init__(self, path: str | Path | None) -> None:
        self._descriptor = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def held(self) -> Iterator[None]:
        if self._descriptor is None:
            yield
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


@dataclass(frozen=True)
class Ablation:
    """What is switched off: computing and encoding take turns by files, or a batch is staged only when none runs."""

    upper_turns: Path | None = None
    lower_turns: Path | None = None
    stages_ahead: bool = True


def loop_with_turns(path: str | None, stages_ahead: bool) -> type[ServeLoop]:
    """A serve loop that computes only while it holds the file's lock."""
    lock = FileLock(path)

    class LoopWithTurns(ServeLoop):
        def may_stage(self) -> bool:
            return super().may_stage() and (stages_ahead or not self._in_flight)

        def compute(self, runner: BatchRunner, batch: StagedBatch) -> None:
            with lock.held():
                super().compute(runner, batch)

    return LoopWithTurns


def locked(method: Callable[..., Any], path: str) -> Callable[..., Any]:
    lock = FileLock(path)

    @wraps(method)
    def call(*args: Any) -> Any:
        with lock.held():
            return method(*args)

    return call


def code_with_turns(folder: Path, ablation: Ablation) -> Path:
    """Copy the models' own code into a folder, with the ablation behind it."""
    shutil.copytree(installed_code(), folder)
    upper = None if ablation.upper_turns is None else str(ablation.upper_turns)
    append_to_model(
        folder / "hplm_upper",
        "from bench.kit.turns import loop_with_turns\n\n"
        f"TritonPythonModel.loop_type = loop_with_turns({upper!r}, {ablation.stages_ahead})\n",
    )
    if ablation.lower_turns is not None:
        append_to_model(
            folder / "hplm_lower",
            "from bench.kit.turns import locked\n\n"
            f"TritonPythonModel.execute = locked(TritonPythonModel.execute, {str(ablation.lower_turns)!r})\n",
        )
    return folder
