"""The figures of `bench.pruning`, and what it keeps; no hPLM is tuned here."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends.home import Home
from bench.kit.tiny_home import write_task
from bench.pruning import QUICK, _measured, figures_of


def pruned(lost: float, saved: float, computed: float, task: str = "one") -> dict[str, object]:
    measured = {"points lost": lost, "least saved": saved, "computed tokens": computed, "computed tokens, whole": 0.8}
    return {"measure": "pruning", "task": task, "after": 2, "layers": 3, **measured}


def ensemble(weight: float, lost: float) -> dict[str, object]:
    return {"measure": "ensemble", "weight": weight, "points lost": lost, "after": 2, "layers": 3}


def test_figures_count_only_what_loses_little() -> None:
    ensembles = [ensemble(weight, -weight) for weight in (0.9, 0.75, 0.5)]
    others = [pruned(0.3, 0.1, 0.5), pruned(0.4, 0.2, 0.4, task="two"), *ensembles]
    figures = figures_of([pruned(0.1, 0.02, 0.7), *others], most_points=0.2)
    assert figures["least_computed_mean"] == pytest.approx((0.7 / 0.8 + 1) / 2)
    assert (figures["saved"], figures["computed_tokens"], figures["computed_tokens_whole"]) == (0.02, 0.7, 0.8)
    assert figures["ensemble_points_75"] == 0.75
    assert figures_of([pruned(0.0, -0.1, 0.9), *ensembles], most_points=0.2)["saved"] == 0.0
    assert figures_of([pruned(0.3, 0.1, 0.5), *ensembles], most_points=0.2)["computed_tokens"] == 1.0


def test_a_task_that_is_kept_is_not_measured_again(
    built_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def rows_after(_: object, after: int) -> SimpleNamespace:
        measured.append(after)
        return SimpleNamespace(rows=lambda: [{"after": after}])

    monkeypatch.setattr("bench.pruning.Task", lambda *_: SimpleNamespace(num_layers=3))
    monkeypatch.setattr("bench.pruning.Measured", rows_after)
    write_task(tmp_path / "tasks" / "mood", "mood", seed=3, train=4)
    options = Namespace(home=built_home.path, root="tiny", data=tmp_path, trials=tmp_path / "kept")
    first = _measured(options, QUICK, "mood")
    assert first == _measured(options, QUICK, "mood") == [{"after": 1}, {"after": 2}] and measured == [1, 2]
