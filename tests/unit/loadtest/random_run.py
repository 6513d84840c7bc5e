"""Runs that never happened: random requests with every kind of end, written as a real run writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from loadtest.labelled import LabelledText, LabelledTexts
from loadtest.outcome import Kind, Outcome
from loadtest.run_folder import RunFolder, State
from loadtest.scenarios import Content
from loadtest.schedule import Schedule
from loadtest.texts import WordTexts
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths

HPLMS = tuple(f"tenant{number // 2}/task{number % 2}" for number in range(7))
REASONS = ("UNAVAILABLE: the queue is full", "UNAVAILABLE: <late> & gone", "INTERNAL: it broke, 'badly'")


def random_schedule(
    seed: int, count: int = 400, deadlines: UniformDeadlines | None = UniformDeadlines(20, 120)
) -> Schedule:
    rng = np.random.default_rng(seed)
    labelled = LabelledTexts({HPLMS[0]: [LabelledText(f"text {number}", f"label {number % 3}") for number in range(9)]})
    content = Content(HPLMS, WordTexts(), NormalLengths(20), deadlines, labelled=labelled, level="auto")
    times_s = np.sort(rng.random(count) * 10)
    return content.schedule(times_s, rng.integers(len(HPLMS), size=count), rng)


def random_outcomes(schedule: Schedule, seed: int, share: float = 0.9) -> list[Outcome]:
    """Draw the outcomes of about that share of the rows, in the order of their ends."""
    rng = np.random.default_rng(seed)
    outcomes = []
    for row, at_s in enumerate(schedule.times_s.tolist()):
        if rng.random() >= share:
            continue
        sent_s = at_s + rng.exponential(0.002)
        kind = rng.choice([Kind.ANSWERED, Kind.REJECTED, Kind.FAILED], p=[0.7, 0.2, 0.1])
        reason = {Kind.ANSWERED: "", Kind.REJECTED: REASONS[row % 2], Kind.FAILED: REASONS[2]}[Kind(kind)]
        version = 3 if kind == Kind.ANSWERED else None
        of_answer = _of_answer(schedule.label(row), rng) if kind == Kind.ANSWERED else ()
        outcomes.append(Outcome(row, sent_s, sent_s + rng.exponential(0.05), str(kind), reason, version, *of_answer))
    return sorted(outcomes, key=lambda outcome: outcome.done_s)


def _of_answer(label: str | None, rng: np.random.Generator) -> tuple[str, bool, bool | None]:
    """Level, whether it is doubtful, and whether it is right: early answers are less often."""
    level = str(rng.choice(["", "early", "full"], p=[0.2, 0.5, 0.3]))
    doubtful = level == "early" and rng.random() < 0.2
    return level, doubtful, None if label is None else bool(rng.random() < (0.7 if level == "early" else 0.9))


def random_folder(path: Path, seed: int, state: State = State.COMPLETE, **more: Any) -> RunFolder:
    folder = RunFolder.create(path)
    schedule = random_schedule(seed)
    folder.write_schedule(schedule)
    with folder.writing(schedule) as writer:
        writer.write(random_outcomes(schedule, seed))
    run = {
        "state": state,
        "settings": {"scenario": "overload", "rate": 40.0},
        "target": {"url": "server:8001", "protocol": "grpc", "timeout_s": None},
        "workers": 2,
        "lateness_limit_ms": 20.0,
        "began_at": "2026-01-02T03:04:05+00:00",
        "batches": {"1": 10, "4": 30},
    }
    folder.write_run({**run, **more})
    return folder
