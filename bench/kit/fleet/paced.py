"""Servers whose device waits instead of computing: eight of them run on two cores, each as fast as it is told.

All else is real: gateway, Triton, lower half, queues, admission, answers.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from backends.engine.loop import ServeLoop
from backends.engine.running import BatchRunner
from backends.engine.staged_batch import StagedBatch
from bench.kit.model_code import append_to_model
from builder.export.repository import installed_code


@dataclass(frozen=True)
class Pace:
    """How long the device takes for a batch."""

    constant_s: float
    per_row_s: float

    def batch_s(self, rows: int) -> float:
        return self.constant_s + self.per_row_s * rows


def paced_loop(constant_s: float, per_row_s: float) -> type[ServeLoop]:
    """A serve loop that takes for each batch as long as a device of that pace would: it waits, then it computes.

    What is about to be computed takes about as long as the batch before; the device waits for so much less.
    """
    pace = Pace(constant_s, per_row_s)

    class PacedLoop(ServeLoop):
        computed_s = 0.0

        def compute(self, runner: BatchRunner, batch: StagedBatch) -> None:
            time.sleep(max(0.0, pace.batch_s(len(batch.jobs)) - self.computed_s))
            began_s = time.monotonic()
            super().compute(runner, batch)
            self.computed_s = time.monotonic() - began_s

    return PacedLoop


def paced_code(folder: Path, pace: Pace) -> Path:
    """Copy the models' own code into a folder, with the pace behind it."""
    shutil.copytree(installed_code(), folder)
    append_to_model(
        folder / "hplm_upper",
        "from bench.kit.fleet.paced import paced_loop\n\n"
        f"TritonPythonModel.loop_type = paced_loop({pace.constant_s!r}, {pace.per_row_s!r})\n",
    )
    return folder
