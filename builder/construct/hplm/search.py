"""The search for a task's best settings: a few are tried, the requested ones first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from backends.adapters.adapter_set import SITES
from backends.adapters.recipe import AdapterRecipe
from builder.construct.hplm.tunable import Tuned
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.loop import DivergedError
from builder.executors.mapping import ParallelMap
from builder.progress import Report, Step
from builder.settings.hplm import TuneSettings

_RATE_FACTOR = 4.0
_WIDTHS = (16, 32, 48, 64, 96, 128)
_RANKS = (4, 8, 16, 32)
_ENTRANCES = (0, 64, 256)
_APART = "tune the trials, side by side"


class PlannedTrial(NamedTuple):
    """Settings to tune with, and the checkpoint that the tuning leaves and goes on at."""

    settings: TuneSettings
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Trial:
    settings: TuneSettings
    tuned: Tuned

    def described(self, main_metric: str) -> dict[str, Any]:
        recipe = self.settings.recipe
        entrance = [f"entrance of {recipe.entrance_width}"] if recipe.entrance_width else []
        return {
            "learning_rate": self.settings.learning_rate,
            "adapters": [*(f"bottleneck.{site}" for site in recipe.bottleneck_sites), *recipe.lora_modules, *entrance],
            "width": recipe.width if recipe.bottleneck_sites else recipe.rank,
            "norms": list(recipe.norm_sites),
            "best_epoch": self.tuned.epoch,
            main_metric: round(self.tuned.metrics[main_metric], 4),
        }


def candidates(settings: TuneSettings, count: int, same_recipe: bool) -> list[TuneSettings]:
    """`count` settings, the same every time: these first, then random ones around them."""
    rng = random.Random(settings.seed)
    others = [_varied(settings, rng, same_recipe) for _ in range(count - 1)]
    return [settings, *others]


def best_trial(trials: Sequence[Trial], main_metric: str) -> Trial:
    """The first of the best."""
    return max(trials, key=lambda trial: trial.tuned.metrics[main_metric])


def run_trials(
    trials: Sequence[PlannedTrial], tune_one: Callable[[PlannedTrial, Report], Tuned], report: Report
) -> list[Trial]:
    """Run trials one after the other.

    Raises:
        DivergedError: All of them diverge.
    """
    tried: list[Tuned | DivergedError] = []
    for number, trial in enumerate(trials, start=1):
        of_trial = _numbered(report, number, len(trials))
        tried.append(_Tried(lambda one, of_trial=of_trial: tune_one(one, of_trial))(trial))  # type: ignore[misc]
    return _ended(trials, tried, report)


def run_trials_apart(
    trials: Sequence[PlannedTrial], tune_one: Callable[[PlannedTrial], Tuned], fan_out: ParallelMap, report: Report
) -> list[Trial]:
    """Run trials as tasks of a map, with the same results. Raises as `run_trials`."""
    tried: list[Tuned | DivergedError] = []
    report(Step(_APART, 0, len(trials)))
    for one in fan_out(_Tried(tune_one), trials):
        tried.append(one)
        report(Step(_APART, len(tried), len(trials)))
    return _ended(trials, tried, report)


@dataclass(frozen=True)
class _Tried:
    """Tunes a trial, and returns the error of one that diverges: the others may come to something."""

    tune_one: Callable[[PlannedTrial], Tuned]

    def __call__(self, trial: PlannedTrial) -> Tuned | DivergedError:
        try:
            return self.tune_one(trial)
        except DivergedError as error:
            return error


def _ended(trials: Sequence[PlannedTrial], tried: Sequence[Tuned | DivergedError], report: Report) -> list[Trial]:
    """Return the trials that did not diverge."""
    pairs = list(zip(trials, tried, strict=True))
    ended = [Trial(trial.settings, one) for trial, one in pairs if not isinstance(one, DivergedError)]
    errors = [one for one in tried if isinstance(one, DivergedError)]
    if not ended:
        raise errors[0]
    if errors:
        report(Step("tune the trials", len(tried), len(tried), f"{len(errors)} of {len(tried)} diverged: {errors[0]}"))
    return ended


def _numbered(report: Report, number: int, count: int) -> Report:
    if count == 1:
        return report
    return lambda step: report(Step(f"trial {number} of {count}: {step.phase}", step.done, step.total, step.note))


def _varied(settings: TuneSettings, rng: random.Random, same_recipe: bool) -> TuneSettings:
    rate = min(1.0, settings.learning_rate * _RATE_FACTOR ** rng.uniform(-1, 1))
    recipe = settings.recipe if same_recipe else _varied_recipe(settings.recipe, rng)
    return replace(settings, learning_rate=float(f"{rate:.3g}"), recipe=recipe)


def _varied_recipe(recipe: AdapterRecipe, rng: random.Random) -> AdapterRecipe:
    if not recipe.bottleneck_sites:
        return replace(
            recipe,
            rank=rng.choice(_RANKS),
            norm_sites=rng.choice(((), SITES)),
            entrance_width=recipe.entrance_width and rng.choice(_ENTRANCES),
        )
    return replace(
        recipe,
        width=rng.choice(_WIDTHS),
        bottleneck_sites=rng.choice((SITES[:1], SITES)),
        norm_sites=rng.choice(((), SITES)),
    )
