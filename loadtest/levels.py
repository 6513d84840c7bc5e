"""A run level by level: who answered, how sure, and how many answers are right where labels are known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.requests import Requests

FULL = "full"
LADDER = ("early", FULL)
WITHOUT = "without a ladder"


@dataclass(frozen=True)
class LevelLine:
    """The answers of one level; accuracy is over those whose labels are known, None where none is."""

    level: str
    answers: int
    share: float
    doubtful: int
    judged: int
    accuracy: float | None
    p50_ms: float
    p99_ms: float


def answer_figures(requests: Requests) -> dict[str, Any]:
    """Compute the figures of answers as such; None where there is nothing to compute them of."""
    answered, laddered = requests.answered, requests.answered & np.isin(requests.levels, LADDER)
    return {
        "judged": int(requests.judged.sum()),
        "accuracy": accuracy_of(requests, answered),
        "below_full": float((requests.levels[laddered] != FULL).mean()) if laddered.any() else None,
        "doubtful": int(requests.doubtful.sum()) if laddered.any() else None,
    }


def by_level(requests: Requests) -> list[dict[str, Any]]:
    """List the levels that answered, the most frequent first; empty where no answer names one and none is judged."""
    answered = requests.answered
    if not (requests.levels[answered] != "").any() and not requests.judged.any():
        return []
    levels, counts = np.unique(requests.levels[answered], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [asdict(_line(requests, str(levels[index]))) for index in order]


def accuracy_of(requests: Requests, rows: NDArray[np.bool_]) -> float | None:
    """Compute the share of some rows' answers that are right, of those of which it is known."""
    right = requests.right[rows & requests.judged]
    return float(right.mean()) if len(right) else None


def _line(requests: Requests, level: str) -> LevelLine:
    rows = requests.answered & (requests.levels == level)
    p50_ms, p99_ms = np.percentile(1000 * requests.latency_s[rows], (50, 99)).tolist()
    return LevelLine(
        level or WITHOUT,
        int(rows.sum()),
        float(rows.sum() / requests.answered.sum()),
        int(requests.doubtful[rows].sum()),
        int((rows & requests.judged).sum()),
        accuracy_of(requests, rows),
        p50_ms,
        p99_ms,
    )
