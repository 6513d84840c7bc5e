"""The figures of `bench.deadlines`, from runs that are made up."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from played import Ended, played

from backends.scheduling.settings import PolicyName
from bench.deadlines import FULL, QUICK, Deadlines, Run, Runs, add_options, chosen, figures
from bench.kit.fates import Fates
from bench.kit.overload import NARROW, WIDE
from bench.kit.trials import Trials
from hplm_client import UnavailableError

ON_TIME, LATE = Ended(0.05), Ended(0.2)
REJECTED = Ended(0.01, UnavailableError("predicted to be answered in 200 ms; the deadline is in 100 ms"))
EXPIRED = Ended(0.1, UnavailableError("the deadline passed while the request waited"))


def run(on_time: int, rejected: int = 0, expired: int = 0, late: int = 0) -> Run:
    ends = [ON_TIME] * on_time + [REJECTED] * rejected + [EXPIRED] * expired + [LATE] * late
    return Run.of(1.0, Fates(played(ends)), 0)


def test_figures_are_over_all_cells_that_they_name() -> None:
    results = {
        (WIDE, 0.5, PolicyName.DAS): [run(100)],
        (NARROW, 0.5, PolicyName.FCFS): [run(98, rejected=1, expired=1)],
        (NARROW, 0.5, "triton's queue"): [run(50, rejected=50)],
        (WIDE, 2.0, PolicyName.DAS): [run(80), run(90), run(60)],
        (WIDE, 2.0, PolicyName.FCFS): [run(40), run(40), run(50)],
        (NARROW, 2.0, PolicyName.DAS): [run(45, expired=5)],
        (NARROW, 2.0, PolicyName.FCFS): [run(50)],
        (WIDE, 2.0, "triton's queue"): [run(160, late=40)],
    }
    found = figures({WIDE: 10.0, NARROW: 11.0}, results)
    assert found["rejected_half_load_max"] == pytest.approx(0.02)
    assert found["admitted_on_time_2x"] == pytest.approx(0.9)
    assert found["das_over_fcfs_2x"] == pytest.approx(2.0)
    assert found["das_over_triton_2x"] == pytest.approx(0.5)
    assert found["das_over_best_mean"] == pytest.approx(0.9**0.5)
    assert found["das_over_best_min"] == pytest.approx(0.9)
    assert found["late_unrejected"] == 0
    assert "das_over_edf_2x" not in found


def test_an_answer_after_the_planned_deadline_counts_as_late_unrejected() -> None:
    assert figures({}, {(WIDE, 2.0, PolicyName.DAS): [run(10, late=2)]})["late_unrejected"] == 2


@pytest.mark.parametrize(
    ("arguments", "runs", "loads", "policies"),
    [
        ([], 3, FULL.loads, FULL.policies),
        (["--quick"], 1, QUICK.loads, QUICK.policies),
        (["--quick", "--runs", "3", "--mixes", "wide", "--loads", "0.5", "2"], 3, {WIDE: (0.5, 2.0)}, QUICK.policies),
        (["--policies", "das", "fcfs", "--loads", "1"], 3, {WIDE: (1.0,), NARROW: (1.0,)}, ("das", "fcfs")),
    ],
)
def test_options_choose_runs_and_cells(
    arguments: list[str], runs: int, loads: dict[str, tuple[float, ...]], policies: tuple[str, ...]
) -> None:
    options = ArgumentParser()
    options.add_argument("--quick", action="store_true")
    add_options(options)
    settings = chosen(options.parse_args(arguments))
    assert (settings.runs, settings.loads, settings.policies) == (runs, loads, policies)


class Asked:
    """A home of which every load has as many requests as its generator says."""

    def __init__(self) -> None:
        self.capacities = 0
        self.loads: list[float] = []

    def warm(self, server: str, rng: np.random.Generator) -> None:
        pass

    def capacity_per_s(self, server: str, mix: str, batches: int, rng: np.random.Generator) -> float:
        self.capacities += 1
        return float(rng.integers(10, 1000))

    def plan(self, mix: str, rate: float, capacity: float, duration_s: float, rng: np.random.Generator) -> list[Any]:
        self.loads.append(rate / capacity)
        return [None] * int(rng.integers(1, 50))


def measure(folder: Path, monkeypatch: pytest.MonkeyPatch, loads: tuple[float, ...]) -> tuple[Asked, Any, Runs]:
    home = Asked()
    monkeypatch.setattr("bench.deadlines.Schedule", SimpleNamespace(of=list))
    monkeypatch.setattr(Deadlines, "_play", lambda _, name, schedule, duration_s: run(len(schedule), late=len(name)))
    settings = replace(FULL, loads={WIDE: loads}, runs=2)
    servers: Any = {"das": "one", "fcfs": "another"}
    deadlines = Deadlines(home, servers, settings, 5, Trials(folder, {}))  # type: ignore[arg-type]
    return home, *deadlines.measure()


def test_loads_that_were_kept_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(tmp_path / "interrupted", monkeypatch, (0.5, 1.0))
    home, capacities, results = measure(tmp_path / "interrupted", monkeypatch, (0.5, 1.0, 3.0))
    assert (home.capacities, home.loads) == (0, pytest.approx([3.0, 3.0]))
    _, *at_once = measure(tmp_path / "at once", monkeypatch, (0.5, 1.0, 3.0))
    assert [capacities, results] == at_once, "the same requests, whatever was kept before them"
