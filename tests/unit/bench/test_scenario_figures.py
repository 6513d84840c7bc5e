"""`bench.scenarios`: what is not answered, or too late to be waited for, must not make a scheme look fast."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scenarios import DEDICATED, HPLM, Answered, figures
from loadtest.in_process import Played
from loadtest.outcome import Kind
from loadtest.requests import Requests
from loadtest.sender import Effort

TIMEOUT_S = 10.0


def results(latencies_s: list[float], kinds: list[Kind]) -> Played:
    """Requests a second apart, each sent half a second late."""
    count = len(latencies_s)
    scheduled_s = np.arange(count, dtype=np.float64)
    texts = np.array([""] * count, np.str_)
    requests = Requests(
        numbers=np.arange(count),
        scheduled_s=scheduled_s,
        sent_s=scheduled_s + 0.5,
        done_s=scheduled_s + np.array(latencies_s),
        tokens=np.full(count, 9),
        deadline_ms=np.full(count, np.nan),
        hplms=texts,
        kinds=np.array(kinds, np.str_),
        reasons=texts,
        levels=texts,
        doubtful=np.zeros(count, bool),
        right=np.full(count, np.nan),
    )
    return Played(requests, Effort(wall_s=1.0, cpu_s=0.1))


def test_what_is_refused_at_once_counts_as_the_timeout() -> None:
    kinds = [Kind.ANSWERED, Kind.REJECTED, Kind.FAILED, Kind.ANSWERED]
    found = Answered.of(results([1.0, 0.6, 10.7, 12.0], kinds), TIMEOUT_S)
    assert found.response_s == pytest.approx([1.0, TIMEOUT_S, 10.7, 12.0])
    assert found.answered == 0.5
    assert found.lateness_p99_ms == pytest.approx(500)


def test_ratios_say_how_much_longer_the_baseline_takes() -> None:
    quick, slow = (Answered.of(results([taken_s] * 4, [Kind.ANSWERED] * 4), TIMEOUT_S) for taken_s in (1.0, 3.0))
    found = {("burst", HPLM): quick, ("burst", DEDICATED): slow, ("steady", HPLM): quick, ("steady", DEDICATED): quick}
    values = figures(found, budget_bytes=2_000_000, resident=7)
    assert values["burst_mean_ratio"] == pytest.approx(3.0)
    assert values["steady_mean_ratio"] == pytest.approx(1.0)
    assert (values["memory_mb"], values["dedicated_in_memory"]) == (2.0, 7.0)
