"""Workloads in the language of users, made for one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.settings import Capacity
from builder.placement.described_workload import DescribedWorkload, Machine
from workload.arrivals import DeterministicArrivals, GammaArrivals, MarkovModulatedArrivals, TraceArrivals
from workload.deadlines import LONGEST_DEADLINE_MS, UniformDeadlines
from workload.errors import WorkloadError
from workload.lengths import FixedLengths
from workload.tenants import UniformTenants, ZipfTenants

MACHINE = Machine(CostModel(1_000.0, 100.0, 10.0, 0.0, 0.0), Capacity(max_rows=10, max_tokens=10_000))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,tokens,tenant\n0,5,a\n1,6,b\n2,7,a\n4,8,c\n")
    return path


def test_a_load_may_be_a_multiple_of_the_machine() -> None:
    full = MACHINE.full_batch(FixedLengths(20), UniformTenants(1))
    assert full == BatchShape(rows=10, tokens=200, squared_lengths=4_000, adapters=1)
    full_batch_us = 1_000 + 10 * 100 + 200 * 10
    described = DescribedWorkload("even", load="1.5x", lengths="fixed:20", tenants="uniform:1", deadlines="5x-20x")
    workload = described.on(MACHINE)
    assert isinstance(workload.arrivals, DeterministicArrivals)
    assert workload.arrivals.rate_per_s == pytest.approx(1.5 * 10 / (full_batch_us / 1e6))
    assert workload.deadlines == UniformDeadlines(round(5 * full_batch_us / 1e3), round(20 * full_batch_us / 1e3))


def test_full_batches_are_limited_by_tokens_and_adapters() -> None:
    short_of_tokens = Machine(MACHINE.cost_model, Capacity(max_rows=64, max_tokens=100))
    assert short_of_tokens.full_batch(FixedLengths(20), UniformTenants(1)).rows == 5
    short_of_adapters = Machine(MACHINE.cost_model, Capacity(max_rows=64, max_adapters=4))
    full = short_of_adapters.full_batch(FixedLengths(2), UniformTenants(10_000))
    assert full.adapters == 4
    assert full.rows == pytest.approx(4, abs=1)


def test_words_become_processes() -> None:
    gamma = DescribedWorkload("gamma", load="200", tenants="zipf:50:1.2", arrival_defaults={"cv": 3.0}).on(MACHINE)
    assert gamma.arrivals == GammaArrivals(200.0, 3.0)
    assert gamma.tenants == ZipfTenants(50, 1.2)
    assert gamma.deadlines is None
    bursts = DescribedWorkload("mmpp", load="200", deadlines="30").on(MACHINE)
    assert isinstance(bursts.arrivals, MarkovModulatedArrivals)
    assert bursts.arrivals.mean_rate_per_s == pytest.approx(200.0)
    assert bursts.deadlines == UniformDeadlines(30, 30)


def test_a_trace_gives_times_lengths_and_tenants(trace: Path) -> None:
    described = DescribedWorkload(f"trace:{trace}", lengths="trace", tenants="trace", retrieval_ms=1.5)
    load = described.on(MACHINE).draw(3.0, seed=1)
    assert load.arrived_us.tolist() == [0, 1_000_000, 2_000_000]
    assert (load.queued_us - load.arrived_us).tolist() == [1_500] * 3
    assert load.tokens.tolist() == [5, 6, 7]
    assert load.tenants.tolist() == [0, 1, 0]


def test_a_trace_gives_deadlines(tmp_path: Path) -> None:
    path = tmp_path / "deadlines.csv"
    path.write_text("time_s,deadline_ms\n0,250\n1,\n2,0.2\n")
    described = DescribedWorkload(f"trace:{path}", deadlines="trace")
    load = described.on(MACHINE).draw(9.0, seed=1)
    assert load.deadlines_us is not None
    assert (load.deadlines_us - load.arrived_us).tolist() == [250_000, 1000 * LONGEST_DEADLINE_MS, 1_000]
    drawn = DescribedWorkload(f"trace:{path}", deadlines="trace").on(MACHINE).deadlines
    assert drawn is not None
    assert set(drawn.draw_ms(100, np.random.default_rng(1)).tolist()) == {250, LONGEST_DEADLINE_MS, 1}


def test_deadlines_of_a_trace_that_has_none_are_an_error(trace: Path) -> None:
    with pytest.raises(WorkloadError, match="deadlines of a trace need --arrivals trace:FILE whose file has deadlines"):
        DescribedWorkload(f"trace:{trace}", deadlines="trace").on(MACHINE)


def test_a_trace_may_be_faster_or_denser(trace: Path) -> None:
    faster = DescribedWorkload(f"trace:{trace}", speed=2.0).on(MACHINE).arrivals
    assert faster.times_s(10.0, np.random.default_rng(0)).tolist() == [0.0, 0.5, 1.0, 2.0]
    denser = DescribedWorkload(f"trace:{trace}", load="20").on(MACHINE).arrivals
    assert isinstance(denser, TraceArrivals)
    assert denser.rate_scale == pytest.approx(20.0)


@pytest.mark.parametrize("load", ["0.5", "1", "3"])
def test_a_scaled_trace_tears_no_tenant_from_its_lengths(tmp_path: Path, load: str) -> None:
    path = tmp_path / "halves.csv"
    path.write_text(
        "time_s,tenant,tokens\n" + "".join(f"{at_s},{'ab'[at_s >= 50]},{5 + at_s}\n" for at_s in range(100))
    )
    described = DescribedWorkload(f"trace:{path}", load=load, lengths="trace", tenants="trace")
    drawn = described.on(MACHINE).draw(200.0, seed=1)
    assert len(drawn) > 20
    of_trace = np.minimum(99, drawn.arrived_us // 1_000_000)
    assert drawn.tokens.tolist() == (5 + of_trace).tolist()
    assert drawn.tenants.tolist() == (of_trace >= 50).astype(int).tolist()


def test_a_machine_on_which_nothing_takes_time_has_no_load() -> None:
    with pytest.raises(WorkloadError, match="a batch takes no time"):
        DescribedWorkload().on(Machine(CostModel(0.0, 0.0, 0.0, 0.0, 0.0), Capacity()))


def test_a_load_lasts_an_hour_or_as_long_as_its_trace(trace: Path, tmp_path: Path) -> None:
    assert DescribedWorkload().duration_s(None) == 3600.0
    assert DescribedWorkload().duration_s(5.0) == 5.0
    traced = DescribedWorkload(f"trace:{trace}")
    assert len(traced.on(MACHINE).draw(traced.duration_s(None), seed=0)) == 4
    assert traced.duration_s(None) == traced.duration_s(3600.0) == pytest.approx(4.0)
    assert traced.duration_s(1.5) == 1.5
    assert DescribedWorkload(f"trace:{trace}", speed=2.0).duration_s(None) == pytest.approx(2.0)
    moment = tmp_path / "moment.csv"
    moment.write_text("time_s\n7\n7\n")
    assert DescribedWorkload(f"trace:{moment}").duration_s(None) == 1.0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"arrivals": "sometimes"}, "not one of poisson, even, gamma"),
        ({"arrivals": "trace:/nowhere/trace.csv"}, "No such file"),
        ({"load": "much"}, "load: 'much' is no number such as 200/s or 1.5x"),
        ({"lengths": "trace"}, "lengths of a trace need"),
        ({"tenants": "trace"}, "tenants of a trace need"),
        ({"deadlines": "trace"}, "deadlines of a trace need"),
        ({"deadlines": "20-5"}, "from the shorter to the longer"),
        ({"retrieval_ms": -1.0}, "a retrieval takes"),
        ({"retrieval_ms": 1e300}, "a retrieval takes"),
        ({"arrivals": "gamma", "arrival_defaults": {"cv": 0.0}}, "cv must be"),
    ],
)
def test_words_that_say_nothing_are_one_line(words: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint) as caught:
        DescribedWorkload(**words).on(MACHINE)
    assert "\n" not in str(caught.value)
