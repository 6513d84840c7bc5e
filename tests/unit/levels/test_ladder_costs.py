"""What ladders are predicted to take, and whether a deadline is kept under full load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.engine.settings import EngineSettings
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.cost_profile import CostProfile, write_profile
from backends.scheduling.settings import Capacity
from bench.kit.tiny_home import ignore, sample_texts
from builder.export.rendered import upper_settings
from builder.levels.ladder_costs import LadderCosts
from builder.levels.material import UnlabelledFile
from builder.levels.selecting import Selecting, select_ladder
from builder.levels.served_stack import served_stack
from builder.levels.target import Target

MODEL = CostModel(1_000.0, 10.0, 5.0, 0.01, 20.0)
"""A full batch of the default capacity takes 29.9 ms by all layers."""


def profiled(home: Home) -> None:
    settings, _ = upper_settings(home)
    measured = EngineSettings.from_model(settings, "cpu").measured(RootFolder(home.root("tiny")))
    write_profile(home.profile("tiny"), CostProfile(MODEL, measured, str(torch.__version__), 40, 1.0))


def test_a_full_batch_takes_what_the_cost_model_says() -> None:
    costs = LadderCosts(MODEL, Capacity(), 1.25)
    full = costs.full_batch_ms(1.0)
    assert full == pytest.approx(MODEL.predict_us(BatchShape(64, 4096, 64 * 64**2, 64)) / 1000)
    assert costs.answered_within_ms(1.0) == pytest.approx(2.5 * full)
    assert costs.answered_within_ms(0.5) == pytest.approx(2.5 * (costs.full_batch_ms(0.5) - 0.5))  # type: ignore[operator]
    assert costs.alone_ms(20, 0.5, 0.4) == pytest.approx((500 + 10 + 5 * 8 + 0.01 * 160 + 20) / 1000)


@pytest.mark.parametrize("model", [MODEL, None])
def test_who_leaves_more_layers_out_costs_less(model: CostModel | None) -> None:
    costs = LadderCosts(model, Capacity(), 1.25)
    ranked = [costs.rank_us(depth) for depth in (0.2, 0.5, 0.9, 1.0)]
    assert ranked == sorted(set(ranked))


def test_without_a_cost_model_nothing_is_said_of_time(tiny_home: Home) -> None:
    costs = LadderCosts.of(tiny_home, "tiny")
    assert costs.model is None and costs.full_batch_ms(1.0) is None and costs.alone_ms(20, 1.0, 1.0) is None
    with pytest.raises(InvalidArgumentError, match="there is none that holds for the export; 'hplm profile' makes one"):
        costs.require_known(50.0)
    costs.require_known(None)
    profiled(tiny_home)
    assert LadderCosts.of(tiny_home, "tiny").model == MODEL


def test_who_cannot_answer_by_all_layers_settles_or_is_late() -> None:
    costs = LadderCosts(MODEL, Capacity(), 1.25)
    full_ms, early_ms = costs.answered_within_ms(1.0), costs.answered_within_ms(1 / 3)
    assert costs.under_load(full_ms, 1 / 3) == f"all layers answer within {full_ms:.3g} ms"
    assert costs.under_load(full_ms - 0.1, 1 / 3).startswith("rows settle for early answers within")
    assert costs.under_load(early_ms - 0.1, 1 / 3).startswith("late: ")
    assert "and no row can settle" in costs.under_load(full_ms - 0.1, None)


def test_a_deadline_is_told_with_the_ladder_and_kept_with_the_target(tiny_home: Home, tmp_path: Path) -> None:
    """1 ms is too short for any ladder: it is published all the same, and one line says why rows will be late."""
    profiled(tiny_home)
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{each.text}\n" for each in sample_texts(500, 917)))
    target = Target.of(agreement=0.8, deadline_ms=1, default_deadline=True, late="reject")
    selecting = Selecting("acme/topic", UnlabelledFile(texts), target)
    registry = Registry.open(tiny_home)
    found = select_ladder(tiny_home, registry, selecting, served_stack(tiny_home), ignore)
    assert found.ladder is not None, found.reason
    warning = found.warnings[-1]
    assert warning.startswith("a deadline of 1 ms under full load: late: all layers take ")
    assert warning.endswith("and no row can settle")
    assert found.entry.metrics["declared"]["deadline_ms"] == found.entry.metrics["ladder"]["deadline_ms"] == 1
    assert found.entry.default_deadline_us == 1000 and not found.entry.may_settle


def test_a_deadline_without_a_cost_model(tiny_home: Home, tmp_path: Path) -> None:
    selecting = Selecting("acme/topic", UnlabelledFile(tmp_path), Target.of(agreement=0.8, deadline_ms=50))
    with pytest.raises(InvalidArgumentError, match="goes by the root's cost model, and there is none"):
        select_ladder(tiny_home, Registry.open(tiny_home), selecting, served_stack(tiny_home), ignore)
