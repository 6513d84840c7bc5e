"""What bench.simulator makes of variants that were predicted, and of one that fails."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import bench.simulator as measured
from backends.errors import InvalidArgumentError, UnavailableError
from backends.scheduling.cost_model import CostModel
from bench.kit.trials import Trials
from bench.kit.twins.frozen import Frozen, Predicted
from bench.kit.twins.loads import POISSON, Capability
from bench.kit.twins.observing import Observed
from bench.kit.twins.variants import VARIANTS, Variant
from builder.placement.server_costs import ServerCosts
from loadtest.in_process import Played
from loadtest.outcome import Outcome
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule
from loadtest.sender import Effort


def run_with(attainment: float) -> Observed:
    """A load of a hundred requests of which so many are answered."""
    schedule = Schedule.of(Row(0.01 * number, "acme/a", "one two", 100) for number in range(100))
    outcomes = [
        Outcome(number, at, at + 0.01, "answered", "", 1) if number < 100 * attainment else Outcome.unsent(number, at)
        for number, at in enumerate(schedule.times_s.tolist())
    ]
    return Observed(Played(Requests.of(schedule, outcomes), Effort(1.0, 1.0)), 0.0)


def frozen(variant: Variant, cells: Sequence[tuple[tuple[float, float], float]]) -> Frozen:
    """Make a comparison of cells: of each what two runs came to, and what was predicted."""
    found = [
        Predicted(POISSON, 1.0, [run_with(attained) for attained in runs], [simulated] * 2, [1.0, 1.0])
        for runs, simulated in cells
    ]
    return Frozen(variant, Capability(100.0, 100.0, 1.0), ServerCosts(CostModel(1.0, 0.0, 0.0, 0.0, 0.0)), found)


def test_the_worst_variant_is_the_figure_and_each_has_its_own() -> None:
    shared = frozen(VARIANTS["shared"], [((0.5, 0.5), 0.51), ((0.6, 0.7), 0.61)])
    two = frozen(VARIANTS["two"], [((0.5, 0.5), 0.46)])
    figures = measured.frozen_figures({one.variant.name: measured.variant_rows(one) for one in (shared, two)})
    expected = {
        "frozen_error_points_shared": 2.5,
        "frozen_error_points_two": 4.0,
        "frozen_error_points": 4.0,
        "worst_error_points_shared": 4.0,
        "bias_points_shared": -1.5,
        "bias_points_two": -4.0,
        "bias_points": 4.0,
        "real_repeat_points_shared": 5.0,
        "worst_beyond_repeat_points": 4.0,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


def test_a_variant_that_fails_costs_the_others_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = frozen(VARIANTS["shared"], [((0.5, 0.5), 0.5)])

    def compare(variant: Variant) -> Frozen:
        if variant is not shared.variant:
            raise UnavailableError("the fleet was not ready within 300 s")
        return shared

    found, failed = measured.predicted(["two", "shared"], Trials(tmp_path, {}), compare)
    assert found == {"shared": measured.variant_rows(shared)}
    assert failed == {"two": "the fleet was not ready within 300 s"}
    assert "variant two failed: the fleet was not ready" in capsys.readouterr().err
    assert np.isfinite(list(measured.frozen_figures(found).values())).all()


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    measured_once = {name: frozen(VARIANTS[name], [((0.5, 0.6), 0.51)]) for name in ("shared", "two")}
    asked: list[str] = []

    def compare(variant: Variant) -> Frozen:
        asked.append(variant.name)
        return measured_once[variant.name]

    trials = Trials(tmp_path, {"seed": 1})
    first, _ = measured.predicted(["shared"], trials, compare)
    both, _ = measured.predicted(["shared", "two"], trials, compare)
    assert asked == ["shared", "two"]
    assert both["shared"] == list(first["shared"])
    assert measured.frozen_figures(both)["frozen_error_points_shared"] == pytest.approx(4.0)
    measured.predicted(["shared"], Trials(tmp_path, {"seed": 2}), compare)
    assert asked == ["shared", "two", "shared"]


def test_a_way_that_cannot_be_kept_is_reported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    trials, shared = Trials(tmp_path, {}), frozen(VARIANTS["shared"], [((0.5, 0.5), 0.5)])
    monkeypatch.setattr(trials, "keep", full)
    found, failed = measured.predicted(["shared"], trials, lambda _: shared)
    assert found == {"shared": measured.variant_rows(shared)} and failed == {}
    assert "variant shared is not kept: " in capsys.readouterr().err


def test_what_is_kept_and_damaged_is_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials, shared = Trials(tmp_path / "trials", {}), frozen(VARIANTS["shared"], [((0.5, 0.5), 0.5)])
    kept = tmp_path / "trials" / f"shared-{trials.key}.json"
    kept.write_text("{")
    found, failed = measured.predicted(["shared"], trials, lambda _: shared)
    assert found == {"shared": measured.variant_rows(shared)} and failed == {}
    assert "variant shared is measured again: " in capsys.readouterr().err
    assert trials.find("shared") == [dict(row) for row in found["shared"]]


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="trials cannot be kept"):
        Trials(tmp_path / "file", {})
