"""`bench.leaks`: a leak shows in its figures, a pool that fills does not."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.kit.cancellation import Cancelled
from bench.kit.footprint import Footprint
from bench.leaks import Results, Sample

MB = 1_000_000
CANCELLED = Cancelled(waiting_while_stopped=970, batches=2, left_s=1.5)


def found(rss_mb: list[float], threads_after: int = 40) -> Results:
    """A sample before, then one a minute."""
    samples = [Sample(f"{minute}", float(minute), footprint(rss, 40)) for minute, rss in enumerate(rss_mb)]
    samples[-1] = Sample("after", float(len(rss_mb) - 1), footprint(rss_mb[-1], threads_after))
    return Results(CANCELLED, samples, Counter({"grpc_answered": 900, "http_answered": 100}), 0.0)


def footprint(rss_mb: float, threads: int) -> Footprint:
    return Footprint({"hplm_upper_0_0": round(rss_mb * MB)}, {"hplm_upper_0_0": 0}, threads, 100, 6, 6 * MB)


def test_a_pool_that_fills_is_no_leak() -> None:
    values = found([100, 180, 200, 200, 200, 200, 200, 200, 200]).figures()
    assert values["rss_mb_per_hour_second_half"] == pytest.approx(0, abs=1e-6)
    assert (values["rss_mb_before"], values["rss_mb_after"]) == (100, 200)
    assert (values["requests"], values["grpc_answered"]) == (1000, 900)
    assert values["hplm_cancelled_still_waiting"] == 970


def test_a_leak_shows() -> None:
    values = found([100 + 2 * minute for minute in range(9)], threads_after=43).figures()
    assert values["rss_mb_per_hour_second_half"] == pytest.approx(120)
    assert values["hplm_upper_0_0_mb_per_hour_second_half"] == pytest.approx(120)
    assert values["threads_more"] == 3
