"""Answers that are kept for rows which go on hold no batch longer than that batch is in flight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from backends.engine import answering
from backends.engine.answer_level import Scored
from backends.engine.insurance import Insurance
from backends.engine.outcomes import Emitted
from backends.engine.stack_protocol import SoFar
from backends.errors import UnavailableError
from backends.scheduling.rejection import late_waiting

_DAY_US = 24 * 3600 * 1_000_000
_ROWS = 16


@pytest.mark.parametrize(("late", "is_answered"), [(False, True), (True, False)])
def test_an_answer_in_hand_is_sent_only_on_time(monkeypatch: pytest.MonkeyPatch, late: bool, is_answered: bool) -> None:
    ended: list[object] = []
    job = Mock(fallback=Scored(torch.zeros(2)), is_late=lambda now_us: late, end=ended.append)
    monkeypatch.setattr(answering, "format_answers", lambda jobs, scored: ["the early answer"] * len(jobs))
    answering.reject([cast(Any, job)], late_waiting())
    (found,) = ended
    assert (found == "the early answer") == is_answered
    assert is_answered or isinstance(found, UnavailableError)


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
        assert insurance.due_in_us(0) == 1_000_000 - 10_000
    held = {id(entry[2].batch) for entry in insurance._heap}
    assert len(held) <= 10 and id(open_batch) in held
