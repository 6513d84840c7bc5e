"""Means, variation and memory of the processes, on fresh random loads; a failure prints its seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from workload.arrivals import (
    Arrivals,
    DeterministicArrivals,
    GammaArrivals,
    MarkovModulatedArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from workload.errors import WorkloadError

RATE_PER_S = 200.0
DURATION_S = 400.0
BURSTS = MarkovModulatedArrivals.bursts(RATE_PER_S, ratio=9.0, mean_stay_s=2.0)
PROCESSES: list[Arrivals] = [
    DeterministicArrivals(RATE_PER_S),
    PoissonArrivals(RATE_PER_S),
    GammaArrivals(RATE_PER_S, cv=0.3),
    GammaArrivals(RATE_PER_S, cv=4.0),
    BURSTS,
]


def variation(gaps: np.ndarray) -> float:
    return float(gaps.std() / gaps.mean())


def autocorrelation(values: np.ndarray, lag: int) -> float:
    return float(np.corrcoef(values[:-lag], values[lag:])[0, 1])


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_times_ascend_within_the_duration_at_the_rate_and_repeat_with_the_seed(process: Arrivals, seed: int) -> None:
    times = process.times_s(DURATION_S, np.random.default_rng(seed))
    assert times.dtype == np.float64
    assert times[0] >= 0
    assert times[-1] < DURATION_S
    assert (np.diff(times) >= 0).all()
    assert len(times) / DURATION_S == pytest.approx(RATE_PER_S, rel=0.3 if process is BURSTS else 0.08)
    assert np.array_equal(times, process.times_s(DURATION_S, np.random.default_rng(seed)))


def test_a_deterministic_load_is_even() -> None:
    times = DeterministicArrivals(4).times_s(1.0, np.random.default_rng(0))
    assert times.tolist() == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gaps_vary_as_told_and_have_no_memory(cv: float, seed: int) -> None:
    gaps = np.diff(GammaArrivals(RATE_PER_S, cv).times_s(DURATION_S, np.random.default_rng(seed)))
    assert variation(gaps) == pytest.approx(cv, rel=0.06)
    assert abs(autocorrelation(gaps, 1)) < 0.03


def test_poisson_counts_vary_by_their_mean(seed: int) -> None:
    times = PoissonArrivals(RATE_PER_S).times_s(DURATION_S, np.random.default_rng(seed))
    counts = np.histogram(times, bins=4_000, range=(0, DURATION_S))[0]
    assert variation(np.diff(times)) == pytest.approx(1.0, abs=0.02)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.12)


def test_a_modulated_load_remembers_its_state_for_as_long_as_it_stays(seed: int) -> None:
    times = BURSTS.times_s(20 * DURATION_S, np.random.default_rng(seed))
    counts = np.histogram(times, bins=int(40 * DURATION_S), range=(0, 20 * DURATION_S))[0]
    # Two states with stays of 2 s forget each other as exp(-t), and so do bins of half a second.
    assert autocorrelation(counts, 4) / autocorrelation(counts, 2) == pytest.approx(np.exp(-1.0), abs=0.2)
    assert autocorrelation(counts, 2) == pytest.approx(0.433, abs=0.1)
    assert abs(autocorrelation(counts, 40)) < 0.08
    assert len(times) / (20 * DURATION_S) == pytest.approx(BURSTS.mean_rate_per_s, rel=0.08)
    assert BURSTS.mean_rate_per_s == pytest.approx(RATE_PER_S)


def test_a_modulated_load_may_pause(seed: int) -> None:
    process = MarkovModulatedArrivals((0.0, 50.0, 100.0), (1.0, 1.0, 2.0))
    times = process.times_s(2_000, np.random.default_rng(seed))
    assert len(times) / 2_000 == pytest.approx(process.mean_rate_per_s, rel=0.15)
    assert np.diff(times).max() > 0.5


def test_a_trace_is_replayed_as_it_was() -> None:
    recorded = np.array([10.0, 10.0, 11.0, 14.0])
    rng = np.random.default_rng(0)
    assert TraceArrivals(recorded).times_s(100.0, rng).tolist() == [0.0, 0.0, 1.0, 4.0]
    assert TraceArrivals(recorded).times_s(4.0, rng).tolist() == [0.0, 0.0, 1.0]
    assert TraceArrivals(recorded, speed=2.0).times_s(100.0, rng).tolist() == [0.0, 0.0, 0.5, 2.0]


@pytest.mark.parametrize("rate_scale", [0.25, 1.7, 3.0])
def test_a_scaled_trace_keeps_its_shape_at_another_rate(rate_scale: float, seed: int) -> None:
    recorded = BURSTS.times_s(DURATION_S, np.random.default_rng(seed))
    recorded -= recorded[0]
    scaled = TraceArrivals(recorded, rate_scale=rate_scale).times_s(DURATION_S, np.random.default_rng(seed + 1))
    assert len(scaled) / len(recorded) == pytest.approx(rate_scale, rel=0.05)
    assert (np.diff(scaled) >= 0).all()
    counts = [np.histogram(times, bins=100, range=(0, DURATION_S))[0] for times in (recorded, scaled)]
    assert np.corrcoef(*counts)[0, 1] > 0.95


def test_a_trace_that_is_multiplied_keeps_each_of_its_own_times(seed: int) -> None:
    recorded = np.sort(np.random.default_rng(seed).random(500)) * 10
    recorded -= recorded[0]
    scaled = TraceArrivals(recorded, rate_scale=2.5).times_s(11.0, np.random.default_rng(seed))
    assert set(recorded) <= set(scaled)
    assert len(scaled) > len(set(recorded)) * 2


@pytest.mark.parametrize("rate_scale", [0.3, 1.0, 2.5])
def test_each_request_of_a_scaled_trace_is_one_of_its_own(rate_scale: float, seed: int) -> None:
    recorded = np.sort(np.random.default_rng(seed).random(500)) * 10
    recorded -= recorded[0]
    times, places = TraceArrivals(recorded, 2.0, rate_scale).replay(4.0, np.random.default_rng(seed))
    assert len(times) == len(places) > 0
    assert (np.diff(times) >= 0).all() and (np.diff(places) >= 0).all(), "what is made of one lies before the next"
    assert (recorded[places] <= 2.0 * times + 1e-9).all() and times[-1] < 4.0


def test_a_trace_is_scaled_to_a_rate(seed: int) -> None:
    recorded = PoissonArrivals(RATE_PER_S).times_s(DURATION_S, np.random.default_rng(seed))
    process = TraceArrivals.at_rate(recorded, rate_per_s=1_000.0, speed=2.0)
    times = process.times_s(DURATION_S, np.random.default_rng(seed))
    assert len(times) / times[-1] == pytest.approx(1_000.0, rel=0.02)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_no_time_has_no_requests(process: Arrivals) -> None:
    assert len(process.times_s(0.0, np.random.default_rng(0))) == 0


@pytest.mark.parametrize("duration_s", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_impossible_durations_are_refused(process: Arrivals, duration_s: float) -> None:
    with pytest.raises(WorkloadError, match="lasts 0 seconds or more"):
        process.times_s(duration_s, np.random.default_rng(0))


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_a_load_that_fits_into_no_memory_is_refused(process: Arrivals) -> None:
    if isinstance(process, TraceArrivals):
        process, duration_s = replace(process, rate_scale=1e12), DURATION_S
    else:
        duration_s = 1e12
    with pytest.raises(WorkloadError, match="requests are more than 200,000,000"):
        process.times_s(duration_s, np.random.default_rng(0))


@pytest.mark.parametrize("cv", [1e9, 1e-200, 101.0])
def test_gaps_that_vary_beyond_measure_are_refused(cv: float) -> None:
    with pytest.raises(WorkloadError, match=r"cv must be 0\.001 to 100"):
        GammaArrivals(1.0, cv)


def test_states_too_short_to_be_drawn_one_by_one_are_refused() -> None:
    bursts = MarkovModulatedArrivals.bursts(10.0, 5.0, mean_stay_s=1e-9)
    with pytest.raises(WorkloadError, match="stays of 1e-09 s are too short"):
        bursts.times_s(60.0, np.random.default_rng(0))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_settings_are_refused(rate: float) -> None:
    with pytest.raises(WorkloadError, match="rate_per_s"):
        PoissonArrivals(rate)
    with pytest.raises(WorkloadError, match="rate_per_s"):
        DeterministicArrivals(rate)
    with pytest.raises(WorkloadError, match="cv"):
        GammaArrivals(1.0, cv=rate)
    with pytest.raises(WorkloadError, match="mean_stay_s"):
        MarkovModulatedArrivals((1.0, 2.0), (1.0, rate))
    with pytest.raises(WorkloadError, match="speed"):
        TraceArrivals(np.array([0.0]), speed=rate)


def test_impossible_states_and_traces_are_refused() -> None:
    with pytest.raises(WorkloadError, match="two or more states"):
        MarkovModulatedArrivals((1.0,), (1.0,))
    with pytest.raises(WorkloadError, match="not all 0"):
        MarkovModulatedArrivals((0.0, 0.0), (1.0, 1.0))
    with pytest.raises(WorkloadError, match="without requests"):
        TraceArrivals(np.zeros(0))
    with pytest.raises(WorkloadError, match="ascend"):
        TraceArrivals(np.array([1.0, 0.5]))
    with pytest.raises(WorkloadError, match="one moment"):
        TraceArrivals.at_rate(np.array([1.0, 1.0]), 5.0)
