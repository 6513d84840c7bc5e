"""An engine that waits instead of computing: everything around it is real, so several fit on few cores.

Usage, in the code of `hplm_upper`:
    from bench.kit.twins.paced import paced_loop
    TritonPythonModel.loop_type = paced_loop({"constant_us": 20_000.0, …})
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from backends.engine.answering import reject
from backends.engine.job import Job, Lease
from backends.engine.loop import ServeLoop
from backends.engine.stack_protocol import Done, Emit, Stack
from backends.errors import UnavailableError
from backends.held_roots import Roots, held_roots, holds
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.stack_key import StackKey
from bench.kit.model_code import append_to_model
from builder.export.repository import installed_code


class PacedStack:
    """A stack whose batches take what a cost model says; all labels are equally likely."""

    def __init__(self, stack: Stack, pace: CostModel) -> None:
        self._stack = stack
        self._pace = pace

    @property
    def key(self) -> StackKey:
        return self._stack.key

    @property
    def depths(self) -> Sequence[float]:
        return self._stack.depths

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        self._stack.require_row(num_tokens, hidden_size)

    def holds(self, job: Job) -> bool:
        return self._stack.holds(job)

    def lease(self, job: Job) -> Lease:
        return self._stack.lease(job)

    def pack(self, jobs: Sequence[Job]) -> Any:
        return self._stack.pack(jobs)

    def run(self, batch: Any, emit: Emit) -> None:
        time.sleep(self._pace.predict_us(BatchShape.of(batch.jobs)) / 1e6)
        for job in batch.jobs:
            emit(job, Done(torch.zeros(len(job.entry.labels))))


def paced_loop(pace: Mapping[str, float]) -> type[ServeLoop]:
    """Make the serve loop of such an engine.

    It rejects rows for roots that the server does not hold, as if its device had no memory for them. Small roots that
    stand for large ones would be loaded at once.
    """
    model, roots = CostModel(**pace), held_roots()

    class PacedLoop(ServeLoop):
        def __init__(self, stack_of: Callable[[StackKey], Stack], *arguments: Any, **named: Any) -> None:
            super().__init__(lambda key: PacedStack(stack_of(key), model), *arguments, **named)

        def submit_together(self, requests: Sequence[Sequence[Job]]) -> None:
            held, foreign = _split_held(requests, roots)
            for jobs in foreign:
                reject(jobs, UnavailableError(f"root {jobs[0].stack.root!r} has no room on this paced device"))
            super().submit_together(held)

    return PacedLoop


def _split_held(requests: Sequence[Sequence[Job]], roots: Roots) -> tuple[list[Sequence[Job]], list[Sequence[Job]]]:
    """Split requests into those for roots that are held, and all others."""
    are_held = [all(holds(roots, job.stack.root) for job in jobs) for jobs in requests]
    return (
        [jobs for jobs, is_held in zip(requests, are_held, strict=True) if is_held],
        [jobs for jobs, is_held in zip(requests, are_held, strict=True) if not is_held],
    )


def paced_code(folder: Path, pace: CostModel) -> Path:
    """Copy the models' code, with a paced engine, into a new folder."""
    shutil.copytree(installed_code(), folder)
    code = (
        "from bench.kit.twins.paced import paced_loop\n\n"
        f"TritonPythonModel.loop_type = paced_loop({json.dumps(pace.to_json())})\n"
    )
    append_to_model(folder / "hplm_upper", code)
    return folder
