"""Answers that are kept for rows which go on hold no batch longer than that batch is in flight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from backends.engine.insurance import Insurance
from backends.engine.outcomes import Emitted
from backends.engine.stack_protocol import SoFar

_DAY_US = 24 * 3600 * 1_000_000
_ROWS = 16


def batch_due(deadline_us: int) -> Any:
    jobs = [SimpleNamespace(deadline_us=deadline_us, number=number) for number in range(_ROWS)]
    return SimpleNamespace(jobs=jobs, open_jobs=[*jobs])


def insure(insurance: Insurance, batch: Any) -> None:
    for job in batch.jobs:
        insurance.insure(Emitted(batch, cast(Any, job), SoFar(torch.zeros(2))))


def test_batches_that_have_ended_are_let_go_whatever_their_rows_deadlines() -> None:
    """One row with a near deadline stays open all the time, in front of all others."""
    insurance, open_batch = Insurance(), batch_due(1_000_000)
    insure(insurance, open_batch)
    for _ in range(500):
        ended = batch_due(_DAY_US)
        insure(insurance, ended)
        ended.open_jobs.clear()
        assert insurance.due_in_us(0) == 1_000_000 - 2_000
    held = {id(entry[2].batch) for entry in insurance._heap}
    assert len(held) <= 10 and id(open_batch) in held
