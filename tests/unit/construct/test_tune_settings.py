"""Settings of tuning: which are refused, how they are changed, what the learning rate does."""

from __future__ import annotations

from typing import Any

import pytest

from backends.adapters.recipe import AdapterRecipe
from backends.errors import InvalidArgumentError
from builder.construct.training.loop import Schedule
from builder.settings.hplm import TuneSettings


@pytest.mark.parametrize("steps", [1, 2, 3, 9, 10, 11, 20, 21, 100])
def test_the_learning_rate_rises_to_its_highest_and_falls_to_nothing(steps: int) -> None:
    schedule = Schedule(steps, warmup_steps=max(1, round(0.1 * steps)), round_steps=1)
    shares = [schedule.share(step) for step in range(1, steps + 2)]
    top = shares.index(max(shares))
    assert shares[top] == 1
    assert shares[: top + 1] == sorted(shares[: top + 1])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert min(shares[:-1]) > 0
    assert shares[-1] == pytest.approx(0, abs=1e-12)
    assert top + 1 == max(1, round(steps / 10))


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"learning_rate": 0.0},
        {"learning_rate": 1.5},
        {"head_learning_rate": -1.0},
        {"epochs": 0},
        {"patience": 0},
        {"rows_per_batch": 0},
        {"seed": -1},
        {"dropout": 1.0},
        {"ema_decay": 1.0},
        {"label_smoothing": -0.1},
        {"weight_decay": float("nan")},
        {"distil_weight": 1.5},
        {"states_weight": -0.1},
        {"states_weight": float("nan")},
        {"states_weight": float("inf")},
        {"temperature": 0.0},
        {"pooling": "none"},
        {"class_weights": "some"},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        TuneSettings(**settings)


def test_settings_are_changed_by_name() -> None:
    settings = TuneSettings(epochs=3, recipe=AdapterRecipe(width=9, norm_sites=("output",)))
    changed = settings.changed({"learning_rate": 1, "recipe": {"width": 12, "bottleneck_sites": ["output"]}})
    assert changed == TuneSettings(
        epochs=3, learning_rate=1, recipe=AdapterRecipe(width=12, norm_sites=("output",), bottleneck_sites=("output",))
    )
    for wrong in (
        {"speed": 3},
        {"epochs": "many"},
        {"epochs": True},
        {"epochs": 2.5},
        {"learning_rate": None},
        {"seed": 1 << 64},
        {"recipe": 3},
        {"recipe": {"depth": 2}},
        {"recipe": {"width": "wide"}},
        {"recipe": {"width": 0}},
    ):
        with pytest.raises(InvalidArgumentError):
            settings.changed(wrong)


def test_a_setting_that_no_file_could_hold_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        TuneSettings().changed({"pooling": "\udc80"})
