"""`bench.int8_quality`: what its figures and rows are made of; no model is tuned here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.home import Home
from bench.int8_quality import QUICK, Answers, Bench, _row, figures_of
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.task_objectives import Classification


def answers(objective: Classification, labels: list[int], right: list[int]) -> Answers:
    outputs = [torch.eye(3)[[label]] for label in labels]
    return Answers.of(objective, outputs, right)


def test_a_row_compares_int8_with_fp32_for_each_way() -> None:
    objective, right = Classification(("a", "b", "c"), [LabelledText("text", "a")]), [0, 1, 2, 0]
    plain = {"fp32": answers(objective, [0, 1, 2, 0], right), "int8": answers(objective, [0, 1, 2, 1], right)}
    row = _row("task", 17, objective, {"plain": plain, "rounded": plain})
    assert (row["plain: fp32"], row["plain: int8"], row["rounded: equal labels"]) == (100, 75, 0.75)
    assert row["plain: lost (95 %)"].startswith("25.00 (")


def test_labels_of_words_outside_entities_do_not_count() -> None:
    terms = np.zeros((1, 3))
    exact = Answers(terms, torch.tensor([0, 0, 1, 2, 0]), outside=0)
    quantised = Answers(terms, torch.tensor([0, 1, 1, 0, 0]), outside=0)
    assert exact.equal_labels(quantised) == pytest.approx(1 / 3)
    assert replace(exact, outside=None).equal_labels(quantised) == pytest.approx(3 / 5)


def test_figures_are_of_what_users_get_and_beside_it_of_rounding() -> None:
    rows = [
        {"plain: fp32": 80.0, "plain: int8": 79.9, "rounded: int8": 80.2, "plain: equal labels": 0.99},
        {"plain: fp32": 70.0, "plain: int8": 69.5, "rounded: int8": 69.0, "plain: equal labels": 0.98},
    ]
    found = figures_of(rows, ("plain", "rounded"))
    assert found["equal_labels_least"] == 0.98
    assert found["quantised_drop_points"] == pytest.approx(0.3)
    assert found["quantised_drop_points_worst"] == pytest.approx(0.5)
    assert found["rounded_drop_points_worst"] == pytest.approx(1.0)
    assert set(figures_of(rows, ("plain",))) == {name for name in found if not name.startswith("rounded")}


def test_a_row_that_is_kept_is_not_measured_again(
    built_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def row_of(self: Bench, name: str, seeds: Sequence[int], report: Any) -> Iterator[dict[str, Any]]:
        for seed in seeds:
            measured.append(seed)
            yield {"task": name, "seed": seed, "metric": "accuracy", "a later column": 0.5}

    monkeypatch.setattr(Bench, "_measured", row_of)
    monkeypatch.setattr("bench.int8_quality.quantise_root", lambda *_: None)

    def rows(*seeds: int) -> list[dict[str, Any]]:
        bench = Bench(built_home, "tiny", tmp_path, replace(QUICK, seeds=seeds), tmp_path / "trials")
        return list(bench.of_task("mrpc", lambda _: None))

    first, both = rows(3), rows(3, 4)
    assert measured == [3, 4] and both[:1] == first
    assert [json.dumps(row) for row in both] == [json.dumps(row) for row in rows(3, 4)]
