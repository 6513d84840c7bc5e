"""`bench.calibration`: what its figures are made of; no hPLM is tuned here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.errors import NotFoundError
from bench.calibration import figures_of
from bench.kit.calibration_floor import calibration_floor
from bench.kit.ladder_answers import Ladder
from bench.kit.trials import Trials
from bench.tasks.each_layer import strict_rows
from builder.construct.tasks.calibration import calibration_error
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.task_objectives import Classification
from builder.levels.answers import StepAnswers

OBJECTIVE = Classification(("a", "b"), [LabelledText("text", "a")])
RIGHT = [0, 1, 0, 1]


def step(labels: list[int]) -> StepAnswers:
    return StepAnswers.of(OBJECTIVE, [3 * torch.eye(2)[[label]] for label in labels], RIGHT)


def test_what_leaving_costs_is_what_full_has_right_and_early_has_not() -> None:
    ladder = Ladder(early=step([1, 1, 1, 1]), full=step([0, 1, 0, 0]))
    assert ladder.effect.tolist() == [1, 0, 1, -1]
    everything = np.ones(4, bool)
    assert ladder.drop(everything) == pytest.approx(100 * (2 - 1) / 4)  # the last row was wrong before
    assert ladder.drop(np.array([False, True, False, True])) == pytest.approx(-25)


def test_a_row_of_words_is_as_sure_as_its_least_sure_word() -> None:
    logits = [torch.tensor([[5.0, 0.0], [0.1, 0.0]]), torch.tensor([[4.0, 0.0]])]
    labels = [torch.tensor([0, 0]), torch.tensor([0])]
    confidence = StepAnswers(logits, labels, np.ones(2, bool)).confidence(1.0)
    assert confidence[0] == pytest.approx(torch.softmax(logits[0][1], dim=-1).max().item())
    assert confidence[1] > 0.9


def row(task: str, after: int, metric: str = "accuracy", **changes: Any) -> dict[str, Any]:
    errors = dict.fromkeys(("ece early", "ece full", "ece early before", "ece full before", "ece floor"), 0.02)
    costs = {"drop": 0.5, "violations": 0.05, "answered early": 0.6, "layers saved": 0.4, "bytes": 0.01}
    of_kind = {"labels": 3, "pairs": False, "drop error": 0.1, "chosen": True, "select s": 9.0}
    return {"task": task, "after": after, "layers": 6, "metric": metric, **errors, **costs, **of_kind, **changes}


def test_figures_are_of_what_was_chosen_and_of_labels_apart_from_entities() -> None:
    rows = [
        row("a", 1, violations=0.9, chosen=False),
        row("a", 2),
        row("b", 3, labels=150, bytes=0.2, **{"answered early": 0.8, "ece full before": 0.01}),
        row("ner", 2, "f1", violations=0.2, **{"ece early": 0.4}),
    ]
    found = figures_of(rows)
    assert found["exit_share_mean"] == pytest.approx(0.7) and found["ece_after"] == pytest.approx(0.02)
    assert found["violations"] == 0.2 and found["early_bytes_share"] == 0.01
    assert found["ece_no_worse_share"] == 0.5  # of b it is worse afterwards
    assert found["worst_drop_less_error_points"] == pytest.approx(0.4)
    assert found["layers_saved_mean"] == pytest.approx(0.4) and found["select_seconds"] == 9.0
    with pytest.raises(NotFoundError):
        figures_of(rows[-1:])


def test_dev_texts_that_were_trained_on_certify_nothing_and_others_once() -> None:
    train, dev = ([LabelledText(text, "a") for text in texts] for texts in (["one"], ["two", "One ", "three", "TWO"]))
    assert strict_rows(train, dev).tolist() == [0, 2]


def test_the_error_of_a_drop_is_that_of_its_rows() -> None:
    ladder = Ladder(early=step([1, 1, 0, 1]), full=step(RIGHT))
    assert ladder.drop_error(np.ones(4, bool)) == pytest.approx(100 * (3 / 16 / 4) ** 0.5)
    assert ladder.drop_error(np.zeros(4, bool)) == 0


def test_a_task_that_is_kept_is_found_by_all_that_it_depends_on(tmp_path: Path) -> None:
    trials, other = Trials(tmp_path / "kept", {"seed": 1}), Trials(tmp_path / "kept", {"seed": 2})
    assert trials.find("a") is None
    trials.keep("a", [row("a", 2)])
    assert trials.find("a") == [row("a", 2)] and other.find("a") is None
    assert Trials(None, {}).find("a") is None


def test_true_confidences_have_the_error_of_chance() -> None:
    rng = np.random.default_rng(2)
    confidence = 0.5 + 0.5 * rng.random(4000)
    floor = calibration_floor(confidence, rng)
    assert 0.002 < floor < 0.02
    assert calibration_error(confidence, rng.random(4000) < confidence) < 2 * floor
    assert calibration_error(confidence, rng.random(4000) < confidence - 0.1) > 4 * floor
