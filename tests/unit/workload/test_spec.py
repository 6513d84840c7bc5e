"""The one language of workloads: what it says, what it still accepts, and what it says of nonsense."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workload.arrivals import Arrivals, DeterministicArrivals, GammaArrivals, MarkovModulatedArrivals, PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.forms import read_duration_s
from workload.lengths import FixedLengths, Lengths, NormalLengths
from workload.spec import parse_arrivals, parse_deadlines, parse_lengths, parse_load, parse_tenants
from workload.tenants import Tenants, UniformTenants, ZipfTenants

BURSTS = MarkovModulatedArrivals.bursts(100.0, 9.0, 2.0)


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("poisson", PoissonArrivals(100.0)),
        ("even", DeterministicArrivals(100.0)),
        ("deterministic", DeterministicArrivals(100.0)),
        ("gamma:cv=3", GammaArrivals(100.0, 3.0)),
        ("gamma:3", GammaArrivals(100.0, 3.0)),
        ("gamma", GammaArrivals(100.0, 2.0)),
        ("bursts:ratio=9,stay=2s", BURSTS),
        ("bursts:stay=2000ms", BURSTS),
        ("bursts:9:2", BURSTS),
        ("bursts", BURSTS),
        ("mmpp", BURSTS),
    ],
)
def test_arrivals(text: str, arrivals: Arrivals) -> None:
    assert parse_arrivals(text).at_rate(100.0) == arrivals


def test_defaults_are_for_parameters_that_the_text_leaves_out() -> None:
    defaults = {"ratio": 4.0, "stay": 1.0, "cv": 7.0}
    assert parse_arrivals("mmpp", defaults).at_rate(10.0) == MarkovModulatedArrivals.bursts(10.0, 4.0, 1.0)
    assert parse_arrivals("bursts:ratio=5", defaults).at_rate(10.0) == MarkovModulatedArrivals.bursts(10.0, 5.0, 1.0)
    assert parse_arrivals("poisson", defaults).at_rate(10.0) == PoissonArrivals(10.0)


def test_a_trace_is_a_file() -> None:
    spec = parse_arrivals("trace:week:1/monday.csv")
    assert spec.trace == Path("week:1/monday.csv")
    with pytest.raises(WorkloadError, match="has its own times"):
        spec.at_rate(5.0)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("normal:deviation=20", NormalLengths(20)),
        ("normal:20", NormalLengths(20)),
        ("normal:deviation=5,mean=30", NormalLengths(5, mean=30)),
        ("fixed:tokens=7", FixedLengths(7)),
        ("fixed:7", FixedLengths(7)),
        ("trace", None),
    ],
)
def test_lengths(text: str, lengths: Lengths | None) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        ("uniform:count=5", UniformTenants(5)),
        ("uniform:5", UniformTenants(5)),
        ("zipf", ZipfTenants(1000, 1.0)),
        ("zipf:count=50,exponent=1.2", ZipfTenants(50, 1.2)),
        ("zipf:50:1.2", ZipfTenants(50, 1.2)),
        ("zipf:50", ZipfTenants(50, 1.0)),
        ("zipf:exponent=1.2", ZipfTenants(1000, 1.2)),
    ],
)
def test_tenants_of_a_simulation_have_a_count(text: str, tenants: Tenants) -> None:
    spec = parse_tenants(text, count_is_known=False)
    assert spec is not None
    assert spec.among(spec.count) == tenants


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        ("uniform", UniformTenants(30)),
        ("zipf:1.1", ZipfTenants(30, 1.1)),
        ("zipf:exponent=1.1", ZipfTenants(30, 1.1)),
        ("zipf", ZipfTenants(30, 1.0)),
    ],
)
def test_tenants_of_a_load_test_are_its_hplms(text: str, tenants: Tenants) -> None:
    spec = parse_tenants(text, count_is_known=True)
    assert spec is not None
    assert spec.among(30) == tenants


def test_tenants_may_be_those_of_a_trace() -> None:
    assert parse_tenants("trace", count_is_known=True) is parse_tenants("trace", count_is_known=False) is None


def test_a_load_is_a_rate_or_a_multiple() -> None:
    assert parse_load("200/s", "x").rate_per_s(10.0) == parse_load("200", "/s").rate_per_s(10.0) == 200.0
    assert parse_load("1.5x", "/s").rate_per_s(10.0) == parse_load("1.5", "x").rate_per_s(10.0) == 15.0
    assert parse_load("1e3", "/s").rate_per_s(1.0) == 1000.0


@pytest.mark.parametrize(
    ("text", "deadlines"),
    [
        ("200ms", (200, 200)),
        ("200", (200, 200)),
        ("100-400", (100, 400)),
        ("100ms-400ms", (100, 400)),
        ("100-400ms", (100, 400)),
        ("1s-2s", (1000, 2000)),
        ("1-2s", (1000, 2000)),
        ("500ms-2s", (500, 2000)),
        ("5x-20x", (40, 160)),
        ("5-20x", (40, 160)),
        ("5x-300ms", (40, 300)),
        ("0.1ms", (1, 1)),
    ],
)
def test_deadlines(text: str, deadlines: tuple[int, int]) -> None:
    assert parse_deadlines(text).after(full_batch_ms=8.0) == UniformDeadlines(*deadlines)


def test_durations() -> None:
    assert [read_duration_s(text, "it") for text in ("500ms", "30s", "30", "5m", "1.5h")] == [0.5, 30, 30, 300, 5400]
    assert read_duration_s("1e-1m", "it") == 6.0
    assert read_duration_s("20", "it", bare_unit="ms") == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("parse", "complaint"),
    [
        (
            lambda: parse_arrivals("sometimes"),
            "arrivals 'sometimes' is not one of poisson, even, gamma:cv=CV, bursts:ratio=RATIO,stay=STAY, trace:FILE",
        ),
        (lambda: parse_arrivals("trace:"), "is not one of"),
        (lambda: parse_arrivals("gamma:cv=much"), "arrivals 'gamma:cv=much': 'much' is no number"),
        (lambda: parse_arrivals("gamma:cv=0"), "cv must be"),
        (lambda: parse_arrivals("gamma:ratio=2"), "'ratio=2' is not understood; gamma has cv"),
        (lambda: parse_arrivals("gamma:2:3"), "'3' is not understood; gamma has cv"),
        (lambda: parse_arrivals("bursts:9:ratio=2"), "'ratio=2' is not understood; bursts has ratio, stay"),
        (lambda: parse_arrivals("poisson:3"), "'3' is not understood; poisson has no parameters"),
        (lambda: parse_arrivals("bursts:stay=soon"), "'soon' is no time such as 500ms, 30s, 5m or 1h"),
        (lambda: parse_arrivals("bursts:stay=0s"), "must be above 0, not '0s'"),
        (
            lambda: parse_lengths("long"),
            "lengths 'long' is not one of normal:deviation=DEVIATION,mean=MEAN, fixed:",
        ),
        (lambda: parse_lengths("normal"), "lengths 'normal' needs deviation: normal:deviation=DEVIATION,mean=MEAN"),
        (lambda: parse_lengths("fixed:nan"), "'nan' is no number"),
        (lambda: parse_lengths("fixed:0"), "1 token or more"),
        (lambda: parse_lengths("fixed:1e300"), "1,048,576 at most, not 1e"),
        (lambda: parse_tenants("zipf:0", count_is_known=False), "1 tenant or more"),
        (lambda: parse_tenants("uniform:2000000000", count_is_known=False), "10,000,000 at most"),
        (lambda: parse_tenants("zipf:count=5", count_is_known=True), "'count=5' is not understood; zipf has exponent"),
        (lambda: parse_tenants("zipf:-1", count_is_known=True), "exponent must be a number above 0"),
        (lambda: parse_load("much", "x"), "load: 'much' is no number"),
        (lambda: parse_load("2y", "x"), "load: '2y' is no number"),
        (lambda: parse_load("-3", "/s"), "load must be above 0, not '-3'"),
        (lambda: parse_load("0x", "/s"), "load must be above 0"),
        (lambda: parse_load("inf", "/s"), "load: 'inf' is no number"),
        (lambda: parse_deadlines("20-5").after(None), "from the shorter to the longer"),
        (lambda: parse_deadlines("soon"), "deadlines: 'soon' is no number"),
        (lambda: parse_deadlines("-5"), "deadlines must be above 0, not '-5'"),
        (lambda: parse_deadlines("9e99").after(None), "a deadline is 86400000 ms away at most"),
        (lambda: parse_deadlines("25h").after(None), "a deadline is 86400000 ms away at most"),
        (lambda: parse_deadlines("5x-20x").after(None), "times of a full batch .* are for simulations"),
        (lambda: parse_load("1" * 5000, "/s"), "is no number"),
    ],
)
def test_nonsense_is_one_line_with_what_is_known(parse: Callable[[], object], complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint) as caught:
        parse()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_workloads_import_nothing_but_numpy() -> None:
    code = (
        "import sys, numpy.random\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import workload.spec, workload.traces\n"
        "new = {name.partition('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)\n"
        "print(sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['workload']"
