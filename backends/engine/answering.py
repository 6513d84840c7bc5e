"""Who is told what: each job once, through its own `respond`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from backends.clock import now_us
from backends.engine.answers import answers
from backends.engine.job import Answer, Job
from backends.engine.staged_batch import Result
from backends.errors import HplmError
from backends.memory import told
from backends.scheduling.refusal import Refusal, RefusedError

LOGGER = logging.getLogger(__name__)
_LATE_COMPUTED = "the deadline passed while the request was computed"


def answer(results: Sequence[tuple[Job, Result]]) -> None:
    """Nobody is answered before all answers are known, so a defect on the way to them is the answer of all."""
    jobs = [job for job, _ in results]
    try:
        found = _answers(results)
    except Exception as error:
        refuse(jobs, error)
        return
    for job, result in zip(jobs, found, strict=True):
        _respond(job, result)


def _answers(results: Sequence[tuple[Job, Result]]) -> list[Answer | HplmError]:
    """A result that comes too late is none."""
    in_time = set(in_time_and_late([job for job, _ in results])[0])
    computed = {job: result for job, result in results if job in in_time and isinstance(result, Tensor)}
    found = dict(zip(computed, answers(list(computed), list(computed.values())), strict=True))
    late = RefusedError(Refusal.LATE_COMPUTED, _LATE_COMPUTED)
    return [result if isinstance(result, HplmError) else found.get(job, late) for job, result in results]


def in_time_and_late(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Those that are, and those that are late by now."""
    now = now_us()
    return [job for job in jobs if not job.is_late(now)], [job for job in jobs if job.is_late(now)]


def _respond(job: Job, result: Answer | HplmError) -> None:
    """Answer one job; a caller that cannot be reached any more costs the others nothing."""
    try:
        job.respond(result)
    except Exception:
        LOGGER.exception("an answer for %s could not be sent", job.entry.id)


def refuse(jobs: Sequence[Job], reason: Exception) -> None:
    if not jobs:
        return
    error = told(reason)
    for job in jobs:
        _respond(job, error)
