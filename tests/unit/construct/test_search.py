"""A search goes on where one of its trials comes to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from builder.construct.hplm.search import PlannedTrial, candidates, run_trials, run_trials_apart
from builder.construct.hplm.tunable import Tuned
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.loop import DivergedError
from builder.executors.mapping import map_here
from builder.progress import Step, ignore
from builder.settings.hplm import TuneSettings


def planned(tmp_path: Path, count: int) -> list[PlannedTrial]:
    settings = candidates(TuneSettings(), count, same_recipe=True)
    return [PlannedTrial(one, Checkpoint(tmp_path / str(number), "")) for number, one in enumerate(settings)]


def tuned(trial: PlannedTrial, *_: Any) -> Tuned:
    if trial.checkpoint.path.name == "1":
        raise DivergedError("the training diverged at step 3")
    return cast(Tuned, trial.checkpoint.path.name)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_trial_that_diverges_costs_no_other(tmp_path: Path, is_apart: bool) -> None:
    trials, steps = planned(tmp_path, 4), list[Step]()
    if is_apart:
        found = run_trials_apart(trials, tuned, map_here, steps.append)
    else:
        found = run_trials(trials, tuned, steps.append)
    assert [trial.tuned for trial in found] == ["0", "2", "3"]
    assert any("1 of 4 diverged: the training diverged at step 3" in step.note for step in steps)


def test_where_all_diverge_the_search_has_failed(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="diverged at step 3"):
        run_trials(planned(tmp_path, 2)[1:], tuned, ignore)


def test_rates_around_the_largest_one_are_allowed_ones() -> None:
    assert max(one.learning_rate for one in candidates(TuneSettings(learning_rate=0.9), 20, True)) == 1.0
