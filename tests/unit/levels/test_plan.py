"""A target that is declared when an hPLM is tuned: kept with the version, selected for, or said to be missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.errors import InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, sample_texts, write_values
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.levels.plan import LadderPlan, Outcome, plan_creation, plan_update
from builder.levels.target import Target, check_target
from builder.progress import Step
from builder.requests.hplms import CreateHplm, UpdateHplm
from builder.requests.levels import DeclaredLadder, LadderTarget

NAME = "plan/topic"
SHORT = {"epochs": 1}


def written(path: Path, count: int, seed: int) -> Path:
    rows = [{"text": text.text, "label": text.topic} for text in sample_texts(count, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    counts = {"train": (480, 100), "dev": (60, 903), "held_out": (400, 901)}
    return {name: written(tmp_path / f"{name}.jsonl", *count) for name, count in counts.items()}


def creation(files: dict[str, Path], **ladder: Any) -> CreateHplm:
    declared = DeclaredLadder(held_out=files["held_out"], **ladder)
    task = {"train": files["train"], "dev": files["dev"], "tune": SHORT}
    return CreateHplm(id=NAME, root="tiny", domain="farm", ladder=declared, **task)


def created(home: Home, request: CreateHplm) -> Outcome:
    registry, planned = Registry.open(home), plan_creation(home, request)
    entry = create_hplm(home, registry, request, ignore, noted=planned.figures)
    assert (entry.version, entry.levels, entry.metrics["declared"]) == (1, ("full",), planned.figures["declared"])
    return planned.select(home, registry, entry, ignore)


def updated(home: Home, files: dict[str, Path], ladder: DeclaredLadder | None) -> tuple[LadderPlan, Outcome]:
    registry = Registry.open(home)
    task = {"train": files["train"], "dev": files["dev"], "tune": SHORT}
    request = UpdateHplm(id=NAME, force=True, ladder=ladder, **task)
    planned = plan_update(home, registry, request)
    entry = update_hplm(home, registry, request, ignore, noted=planned.figures)
    return planned, planned.select(home, registry, entry, ignore)


def test_a_target_goes_with_its_hplm(tiny_home: Home, files: dict[str, Path]) -> None:
    """Declared once: the ladder comes with the tuning, and updates keep the target, with texts or without."""
    made = created(tiny_home, creation(files, max_drop=25, certainty=0.8, after=1))
    assert made.reason is None and (made.entry.version, made.entry.levels) == (2, ("early", "full"))
    noted = {
        "target": "a drop of at most 25 points",
        "loss": "max-drop",
        "tolerance": 0.25,
        "certainty": 0.8,
        "guarantee": "each",
    }
    assert made.entry.metrics["declared"] == {**noted, "after": 1}
    _, without = updated(tiny_home, files, None)
    assert without.entry.levels == ("full",) and without.entry.metrics["declared"] == {**noted, "after": 1}
    assert without.reason is not None and "held-out texts have to certify" in without.reason
    planned, again = updated(tiny_home, files, DeclaredLadder(held_out=files["held_out"]))
    assert planned.target == Target("max-drop", 0.25, 0.8) and planned.after == (1,)
    assert planned.command.endswith(f"--held-out {files['held_out']} --max-drop 25 --certainty 0.8 --after 1")
    assert again.entry.levels == ("early", "full") and again.entry.metrics["ladder"]["certainty"] == 0.8
    other, _ = updated(tiny_home, files, DeclaredLadder(held_out=files["held_out"], agreement=0.7))
    assert other.target == Target.of(agreement=0.7, certainty=0.8) and other.after == (1,)


def test_what_may_not_hold_of_a_ladder_is_said_with_it(tiny_home: Home, files: dict[str, Path]) -> None:
    made = created(tiny_home, creation({**files, "dev": files["held_out"]}, target_accuracy=0.2))
    assert made.reason is None and made.entry.metrics["ladder"]["strict"] is False
    assert any("chose the epoch of this version" in warning for warning in made.warnings)


def test_an_update_counts_the_earlier_training_as_known(tiny_home: Home, files: dict[str, Path]) -> None:
    registry = Registry.open(tiny_home)
    request = creation(files, max_drop=25)
    create_hplm(tiny_home, registry, request.model_copy(update={"train": files["held_out"]}), ignore)
    task = {"train": files["train"], "dev": files["dev"], "tune": SHORT}
    update = UpdateHplm(id=NAME, ladder=request.ladder, **task)
    with pytest.raises(TrainingDataError, match=r"besides \d+ that were trained on"):
        plan_update(tiny_home, registry, update)
    recipe = {"tune": {**SHORT, "recipe": {"width": 24}}}
    for anew in ({"from_scratch": True}, recipe):
        assert plan_update(tiny_home, registry, update.model_copy(update=anew)).target == Target.of(max_drop=25)


@pytest.mark.parametrize("error", [OSError("/srv/a is gone"), RuntimeError("out of memory"), MemoryError()])
def test_a_selection_that_fails_leaves_the_tuned_version_live(
    tiny_home: Home, files: dict[str, Path], error: Exception
) -> None:
    def failing(step: Step) -> None:
        raise error

    registry, request = Registry.open(tiny_home), creation(files, max_drop=25)
    plan = plan_creation(tiny_home, request)
    entry = create_hplm(tiny_home, registry, request, ignore, noted=plan.figures)
    outcome = plan.select(tiny_home, registry, entry, failing)
    assert outcome == Outcome(entry, f"the server failed on this request: {type(error).__name__}")
    assert registry.hplm(NAME).version == 1


def test_a_target_that_is_missed_stays_declared(tiny_home: Home, files: dict[str, Path]) -> None:
    made = created(tiny_home, creation(files, target_accuracy=0.99))
    assert made.reason is not None and "misses accuracy of at least 0.99 with all its layers" in made.reason
    assert (made.entry.version, made.entry.levels) == (1, ("full",))
    assert made.entry.metrics["declared"]["loss"] == "target-accuracy"


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ({"max_drop": 0}, "leaves no share of rows"),
        ({"max_drop": float("nan")}, "must be a number"),
        ({"max_drop": 1, "agreement": 0.9}, "one target at a time"),
        ({"max_drop": 20, "deadline_ms": 0.0}, "a deadline is a number of milliseconds above 0, not 0"),
        ({"max_drop": 20, "deadline_ms": -5.0}, "above 0, not -5"),
        ({"max_drop": 20, "deadline_ms": float("nan")}, "above 0, not nan"),
        ({"max_drop": 20, "deadline_ms": float("inf")}, "above 0, not inf"),
        ({"max_drop": 20, "deadline_ms": 50.0}, "goes by the root's cost model, and there is none"),
        ({"guarantee": "fleet", "certainty": 0.9}, "a certainty is of each hPLM"),
        ({"guarantee": "fleet", "target_accuracy": 0.9}, "fleet bounds what is lost against all layers"),
        ({"certainty": 1.0}, "certainty is at least 0.5 and below 1"),
        ({"max_drop": 0.1}, "takes at least"),
        ({"max_drop": 20, "after": 9}, "2 upper layers"),
        ({"max_drop": 20, "after": [1, 1]}, "layer 1 is named twice"),
        ({"max_drop": 20, "after": [1, 1, 1]}, "at most 2 layers to choose from, not 3"),
    ],
)
def test_nothing_is_tuned_for_what_no_selection_could_keep(
    tiny_home: Home, files: dict[str, Path], ladder: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidArgumentError, TrainingDataError), match=message):
        plan_creation(tiny_home, creation(files, **ladder))
    assert not Registry.open(tiny_home).has_hplm(NAME)


def test_held_out_texts_of_another_task(tiny_home: Home, files: dict[str, Path], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"text": "a cat", "label": "nowhere"}\n' * 300)
    with pytest.raises(TrainingDataError, match="label 'nowhere', which hPLM 'plan/topic' does not know"):
        plan_creation(tiny_home, creation({**files, "held_out": foreign}, max_drop=20))
    train, dev = write_values(tmp_path / "values", 7)
    request = creation({"train": train, "dev": dev, "held_out": dev}, target_accuracy=0.8)
    with pytest.raises(InvalidArgumentError, match="answers with numbers, which have no accuracy"):
        plan_creation(tiny_home, request.model_copy(update={"task": "regression"}))


def test_a_request_names_its_target_or_means_the_one_before() -> None:
    before = Target.of(agreement=0.9, certainty=0.8)
    assert Target.requested(LadderTarget()) == Target.of()
    assert Target.requested(LadderTarget(), before) == before
    assert Target.requested(LadderTarget(certainty=0.95), before) == Target.of(agreement=0.9, certainty=0.95)
    assert Target.requested(LadderTarget(max_drop=2), before) == Target.of(max_drop=2, certainty=0.8)
    assert Target.of_version({"ladder": before.noted}) == Target.of_version({"declared": before.noted}) == before
    assert Target.of_version({"ladder": {"answered_early": 0.5}}) is None and Target.of_version({}) is None
    fleet = Target.of(agreement=0.9, guarantee="fleet")
    assert Target.requested(LadderTarget(), fleet) == fleet == Target.of_version({"declared": fleet.noted})
    assert Target.requested(LadderTarget(guarantee="fleet"), before) == Target(
        "agreement", before.tolerance, 0.8, "fleet"
    )
    assert Target.requested(LadderTarget(guarantee="each", certainty=0.7), fleet) == Target.of(
        agreement=0.9, certainty=0.7
    )
    urgent = replace(before, deadline_ms=50.0)
    assert Target.requested(LadderTarget(), urgent) == urgent == Target.of_version({"declared": urgent.noted})
    assert Target.requested(LadderTarget(max_drop=2), urgent) == Target.of(max_drop=2, certainty=0.8, deadline_ms=50)
    assert Target.requested(LadderTarget(deadline_ms=20), urgent).deadline_ms == 20
    assert urgent.options == "--agreement 0.9 --certainty 0.8 --deadline-ms 50"
    strict = replace(urgent, default_deadline=True, late="reject")
    assert strict.options == f"{urgent.options} --default-deadline --late reject"
    assert Target.requested(LadderTarget(), strict) == strict == Target.of_version({"declared": strict.noted})
    assert Target.requested(LadderTarget(default_deadline=False, late="settle"), strict) == urgent
    assert Target.requested(LadderTarget(max_drop=2, late="reject"), urgent).late == "reject"
    older = {name: value for name, value in before.noted.items() if name != "guarantee"}
    assert Target.of_version({"declared": older}) == before


def test_the_length_of_a_default_deadline_may_be_that_of_the_version_before() -> None:
    request = LadderTarget(default_deadline=True)
    check_target(request, goes_on=True)
    assert Target.requested(request, Target.of(deadline_ms=50)) == Target.of(deadline_ms=50, default_deadline=True)
    with pytest.raises(InvalidArgumentError, match="a default deadline needs its length"):
        check_target(request)
    with pytest.raises(InvalidArgumentError, match="a default deadline is 1 to"):
        check_target(request.model_copy(update={"deadline_ms": 0.5}), goes_on=True)


def test_a_certainty_is_of_each() -> None:
    for before in (None, Target.of(guarantee="fleet")):
        with pytest.raises(InvalidArgumentError, match="the guarantee fleet promises a mean, and takes none"):
            Target.requested(LadderTarget(guarantee="fleet", certainty=0.95), before)
