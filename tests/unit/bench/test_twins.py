"""Costs are fitted to what servers traced; loads are replayed as they left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from backends.errors import InvalidArgumentError, UnavailableError
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.trace import Lane
from bench.kit.twins.fitting import LOWER, UPPER, Host, fit_costs
from bench.kit.twins.observing import Alone, Observed, play_in_time, require_connected
from builder.placement.server_costs import CoreCosts
from builder.placement.simulated_stages import WHOLE, Stages
from builder.serving import TracedSpan
from hplm_client import ConnectionLostError, Request
from loadtest.in_process import Played
from loadtest.outcome import Outcome
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule
from loadtest.sender import Ask, Effort, Target

MODEL = CostModel(5_000.0, 0.0, 100.0, 0.0, 0.0)
TRUE = CoreCosts(1.3, 400.0, 250.0, 3.0)
HPLMS = ("acme/a", "acme/b", "globex/a")


def span(lane: Lane, name: str, process: str, start_us: float, duration_us: float, **arguments: int) -> TracedSpan:
    return TracedSpan(lane, name, f"{process}_0", 1 if process == UPPER else 2, start_us, duration_us, 0.0, arguments)


def observed(began_us: float, sent_s: Sequence[float], lag_s: float = 0.0, deadline_ms: int = 500) -> Observed:
    schedule = Schedule.of(Row(at, HPLMS[number % 3], "one two", deadline_ms) for number, at in enumerate(sent_s))
    outcomes = [
        Outcome(number, at + lag_s, at + lag_s + 0.01, "answered", "", 1)
        if deadline_ms > 1e3 * lag_s
        else Outcome.unsent(number, at + lag_s)
        for number, at in enumerate(schedule.times_s.tolist())
    ]
    return Observed(Played(Requests.of(schedule, outcomes), Effort(10.0, 1.0)), began_us)


def traced_load(began_us: float, rate_per_s: float, rng: np.random.Generator) -> tuple[Observed, list[TracedSpan]]:
    """Twenty seconds on a server whose batches take what `TRUE` says, with a scatter of 5 %."""
    load = observed(began_us, np.sort(rng.uniform(0, 20, round(20 * rate_per_s))))
    received_us = load.sent_us[rng.random(len(load.sent_us)) < min(1.0, 200 / rate_per_s)] + 3_000
    spans = [span(Lane.QUEUE, "read", UPPER, at_us, 10.0, requests=1) for at_us in received_us.tolist()]
    now_us = began_us + 100_000
    while now_us < began_us + 19e6:
        rows = int(rng.integers(40, 65))
        tokens = 20 * rows
        end_us = now_us + TRUE.slowness * rng.normal(1, 0.05) * MODEL.predict_us(BatchShape(rows, tokens, 0, 1))
        alone_us = end_us - now_us
        for _ in range(20):
            counts = (int(((times >= now_us) & (times < end_us)).sum()) for times in (load.sent_us, received_us))
            end_us = now_us + alone_us + TRUE.taken_us(*counts)
        spans.append(
            span(Lane.COMPUTE, "run", UPPER, now_us, end_us - now_us, rows=rows, tokens=tokens, squares=0, hplms=1)
        )
        spans.append(span(Lane.STAGING, "stage", UPPER, now_us, 700 + 20 * rows, rows=rows))
        spans.append(span(Lane.ANSWERING, "answer", UPPER, now_us, 300 + 90 * rows, rows=rows))
        now_us = end_us + 500
    return load, spans


def ways(began_us: float) -> tuple[Alone, list[TracedSpan]]:
    """Requests that come alone reach the lower model in 1.5 ms, and the engine 0.8 ms after they are encoded."""
    sent_us = [began_us + 50_000 * number for number in range(9)]
    spans = []
    for at_us in sent_us:
        spans.append(span(Lane.RETRIEVAL, "read", LOWER, at_us + 1_500, 100, requests=1))
        spans.append(span(Lane.RETRIEVAL, "tokenise", LOWER, at_us + 1_700, 300, rows=1))
        spans.append(span(Lane.RETRIEVAL, "fold", LOWER, at_us + 3_500, 500, rows=1))
        spans.append(span(Lane.QUEUE, "read", UPPER, at_us + 4_800, 100, requests=1))
    return Alone(sent_us, 30_000.0), spans


def test_costs_are_found_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alone, spans = ways(0.0)
    loads = []
    for number, rate_per_s in enumerate((100.0, 250.0, 500.0)):
        load, of_load = traced_load(1e6 + 30e6 * number, rate_per_s, rng)
        loads.append(load)
        spans += of_load
    spans.sort(key=lambda one: one.start_us)
    costs = fit_costs(MODEL, {"a": spans}, loads, alone, Host(3.0), 64, {"variant": "test"})
    assert costs.cores.slowness == pytest.approx(TRUE.slowness, rel=0.05)
    for rate_per_ms in (0.1, 0.25, 0.5):
        received = min(rate_per_ms, 0.2)
        found, true = (
            cores.taken_us(1, 0) * rate_per_ms + cores.taken_us(0, 1) * received for cores in (costs.cores, TRUE)
        )
        assert found == pytest.approx(true, abs=20), f"at {rate_per_ms} requests per ms, seed {seed}"
    assert (costs.front.reach_us, costs.front.hop_us) == (pytest.approx(1_500), pytest.approx(800))
    assert costs.front.encoding.of(1) == pytest.approx(2_300)
    assert costs.staging.of(50) == pytest.approx(1_700) and costs.answering.of(50) == pytest.approx(4_800)
    assert np.std(costs.scatter) == pytest.approx(0.05, abs=0.02)
    assert np.mean(costs.scatter) == pytest.approx(1.0, abs=0.01)


def test_on_a_core_of_its_own_an_engine_is_not_slowed_by_what_is_sent(seed: int) -> None:
    rng, loads, spans = np.random.default_rng(seed), [], []
    for number, rate_per_s in enumerate((100.0, 500.0)):
        load, of_load = traced_load(1e6 + 30e6 * number, rate_per_s, rng)
        loads.append(load)
        spans += of_load
    spans.sort(key=lambda one: one.start_us)
    costs = fit_costs(MODEL, {"a": spans}, loads, Alone([0.0], 1.0), Host(3.0, is_shared=False), 64, {})
    assert costs.cores.per_offered_us == 0 < costs.cores.per_received_us


def test_batches_of_stages_are_not_slow_because_they_wait(seed: int) -> None:
    rng, spans, slowness = np.random.default_rng(seed), [], 1.3
    left_us = [100_000.0, 0.0]
    for _ in range(150):
        rows, start_us = int(rng.integers(20, 65)), left_us[0]
        stage_us = slowness * MODEL.predict_us(BatchShape(rows, 20 * rows, 0, 1)) / 2
        left_us[0] = max(start_us + stage_us, left_us[1])
        left_us[1] = left_us[0] + stage_us
        took_us = left_us[1] - start_us
        spans.append(
            span(Lane.COMPUTE, "run", UPPER, start_us, took_us, rows=rows, tokens=20 * rows, squares=0, hplms=1)
        )
    load = observed(0.0, np.linspace(0.0, left_us[1] / 1e6, 100))
    fitted = {
        stages: fit_costs(MODEL, {"a": spans}, [load], Alone([0.0], 1.0), Host(3.0, False, stages), 64, {}).cores
        for stages in (WHOLE, Stages.even(2))
    }
    assert fitted[Stages.even(2)].slowness == pytest.approx(slowness, rel=0.02)
    assert fitted[WHOLE].slowness > 1.03 * slowness


def test_a_device_that_nothing_slows_is_found_to_be_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    load = observed(0.0, np.sort(rng.uniform(0, 30, 3_000)))
    spans = [
        span(Lane.COMPUTE, "run", UPPER, at_us, 131_000.0, rows=63, tokens=1_260, squares=0, hplms=1)
        for at_us in range(100_000, 29_000_000, 140_000)
    ]
    costs = fit_costs(MODEL, {"a": spans}, [load], Alone([0.0], 1.0), Host(5.0), 64, {})
    assert costs.cores.slowness == pytest.approx(1.0, rel=0.01)
    assert costs.cores.taken_us(14, 0) < 2_000


def test_a_load_that_does_not_end_is_an_error() -> None:
    @asynccontextmanager
    async def open_silent(_: Target) -> AsyncIterator[Ask]:
        async def ask(_: Request) -> None:
            await asyncio.Event().wait()

        yield ask

    schedule = Schedule.of([Row(0.0, HPLMS[0], "one two", 100)])
    playing = play_in_time(Target("127.0.0.1:1"), schedule, time.monotonic(), patience_s=0.1, open_ask=open_silent)
    with pytest.raises(UnavailableError, match="a load was not over"):
        asyncio.run(playing)


def test_a_load_whose_connection_broke_is_an_error() -> None:
    schedule = Schedule.of(Row(0.01 * number, HPLMS[0], "one two", 100) for number in range(100))

    def played(num_broken: int) -> Played:
        outcomes = [
            Outcome.of(number, at_s, at_s + 0.01, ConnectionLostError("reset") if number < num_broken else None)
            for number, at_s in enumerate(schedule.times_s.tolist())
        ]
        return Played(Requests.of(schedule, outcomes), Effort(1.0, 1.0))

    require_connected(played(1))
    with pytest.raises(UnavailableError, match="2 of 100 requests of a load met a broken connection: CONNECTION_LOST"):
        require_connected(played(2))


def test_too_little_cannot_be_fitted() -> None:
    load = observed(0.0, [0.1, 0.2])
    with pytest.raises(InvalidArgumentError, match="too few batches"):
        fit_costs(MODEL, {"a": []}, [load], Alone([0.0], 1.0), Host(3.0), 64, {})


def test_what_left_late_is_replayed_late_and_what_did_not_leave_is_not() -> None:
    run = observed(5e6, [0.5, 1.0, 1.5], lag_s=0.2, deadline_ms=300)
    load = run.replayed(HPLMS, reach_us=2_000)
    assert load.arrived_us.tolist() == [700_000, 1_200_000, 1_700_000]
    assert load.deadlines_us is not None
    assert (load.deadlines_us - load.arrived_us).tolist() == [pytest.approx(102_000, abs=1_000)] * 3
    assert [load.tenant_name(tenant) for tenant in load.tenants.tolist()] == ["acme", "acme", "globex"]
    assert run.sent_us.tolist() == pytest.approx([5.7e6, 6.2e6, 6.7e6])
    assert len(observed(5e6, [0.5], lag_s=0.4, deadline_ms=300).replayed(HPLMS)) == 0
