"""Answers jobs, from logits or with an error, each through its own `respond`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from backends.clock import now_us
from backends.device_errors import client_error
from backends.engine.answer_format import end_to_end, format_answers
from backends.engine.answer_level import Scored
from backends.engine.job import Answer, Job
from backends.errors import HplmError, UnavailableError
from backends.scheduling.rejection import late_computed

LOGGER = logging.getLogger(__name__)


Note = Callable[[Mapping[Job, Scored]], None]
"""Called with answers before they are sent."""


def _ignore(_: Mapping[Job, Scored]) -> None:
    pass


def answer(jobs: Sequence[Job], scored: Sequence[Scored], note: Note = _ignore) -> None:
    """Answer jobs whose logits are finite, and reject those that are late.

    No job is answered before all answers are made, so a defect in making them is the answer of all jobs.
    """
    on_time, late = split_late(jobs)
    reject(late, late_computed(), note)
    of_job = dict(zip(jobs, scored, strict=True))
    sent = {job: of_job[job] for job in on_time}
    answers = dict(zip(on_time, _answers(on_time, [*sent.values()]), strict=True))
    note({job: one for job, one in sent.items() if not isinstance(answers[job], HplmError)})
    for job, one in answers.items():
        job.end(one)


def reject(jobs: Sequence[Job], reason: Exception, note: Note = _ignore) -> None:
    """Answer jobs with the reason. Where the server is only unavailable, a job on time with a fallback gets that."""
    if not jobs:
        return
    error = client_error(reason)
    fallbacks: dict[Job, Scored] = {}
    if isinstance(error, UnavailableError):
        insured, _ = split_late([job for job in jobs if job.fallback is not None])
        fallbacks = {job: _doubtful(job.fallback) for job in insured if job.fallback is not None}
    answers_of = dict(zip(fallbacks, _answers(list(fallbacks), list(fallbacks.values())), strict=True))
    note({job: one for job, one in fallbacks.items() if not isinstance(answers_of[job], HplmError)})
    for job in jobs:
        job.end(answers_of.get(job, error))


def split_late(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Split jobs into those on time and those late by now."""
    now = now_us()
    return [job for job in jobs if not job.is_late(now)], [job for job in jobs if job.is_late(now)]


def are_finite(logits: Sequence[Tensor]) -> list[bool]:
    """Check each output for NaN and infinity, in few array operations for all."""
    if not logits:
        return []
    numbers, starts = end_to_end(logits)
    found: list[bool] = np.logical_and.reduceat(np.isfinite(numbers), starts).tolist()
    return found


def _doubtful(scored: Scored) -> Scored:
    return scored if scored.level is None else scored._replace(level=scored.level.doubtful())


def _answers(jobs: Sequence[Job], scored: Sequence[Scored]) -> list[Answer | HplmError]:
    try:
        return format_answers(jobs, scored)
    except Exception as error:
        return [client_error(error)] * len(jobs)
