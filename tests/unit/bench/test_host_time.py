"""The host's time for a row, and what it is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.trace import Lane
from bench.kit.host_time import host_us_per_row, quotient_before
from bench.kit.reference_job import ReferenceClock
from builder.serving import TracedSpan


def span(lane: Lane, name: str, cpu_us: float) -> TracedSpan:
    return TracedSpan(lane, name, "hplm_upper", 1, 0.0, 10 * cpu_us, cpu_us, {})


def test_computing_does_not_count() -> None:
    spans = [
        span(Lane.QUEUE, "read", 1.0),
        span(Lane.QUEUE, "accept", 2.0),
        span(Lane.STAGING, "choose", 4.0),
        span(Lane.STAGING, "stage", 8.0),
        span(Lane.COMPUTE, "run", 1000.0),
        span(Lane.ANSWERING, "answer", 16.0),
        span(Lane.ANSWERING, "send", 10.0),
        span(Lane.RETRIEVAL, "read", 1000.0),
    ]
    assert host_us_per_row(spans, num_rows=2) == pytest.approx(41.0 / 2)


def test_a_processor_that_was_not_met_has_no_quotient(tmp_path: Path) -> None:
    committed = tmp_path / "host_time.toml"
    committed.write_text('[quotients]\n"AMD EPYC, avx512_bf16" = 0.25\n', encoding="utf-8")
    assert quotient_before("AMD EPYC, avx512_bf16", committed) == 0.25
    assert quotient_before("AMD EPYC", committed) is None


def test_committed_quotients_are_read() -> None:
    assert quotient_before("AMD EPYC, avx512_bf16") is not None


def test_the_reference_job_is_timed_while_a_block_runs() -> None:
    with ReferenceClock() as clock:
        pass
    assert 0 < clock.mean_us < 1e6
