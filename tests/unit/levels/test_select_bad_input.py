"""`hplm select` with files and at moments that it cannot be made from: one clear line, and nothing half made."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.errors import ConflictError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore
from builder.construct.hplm.hplms import building_hplm, publish_linked
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.material import HplmTask, LabelledFiles, material_of
from builder.levels.profile import Profile
from builder.levels.selecting import NOT_CALIBRATED, Selecting, Selection, select_ladder
from builder.levels.selecting_all import select_all
from builder.levels.target import DECLARED, Target
from builder.lifecycle.rollback import rollback_hplm
from builder.progress import Step
from builder.requests.levels import LadderTarget
from selection_cases import EASY, STACK, plain, select


def test_files_of_no_text_or_of_one_class(tiny_home: Home, train: Path, held_out: Path, tmp_path: Path) -> None:
    """Texts of one class teach and certify nothing about the others."""
    empty, lines = tmp_path / "empty.jsonl", [line for line in held_out.read_text().splitlines() if "animals" in line]
    empty.touch()
    one_class = tmp_path / "one.jsonl"
    one_class.write_text("".join(f"{line}\n" for line in lines))
    for files in ((empty, held_out), (train, empty)):
        with pytest.raises(TrainingDataError, match=r"empty.jsonl holds no examples"):
            select(tiny_home, *files)
    for files in ((one_class, held_out), (train, one_class)):
        with pytest.raises(TrainingDataError, match=r"one.jsonl holds one class only .'animals'. of those of hPLM"):
            select(tiny_home, *files)


def test_what_could_not_be_calibrated_is_said(tiny_home: Home) -> None:
    profile = Profile("acme/topic", "", 0.1, 1, 2, [])
    found = Selection(Registry.open(tiny_home).hplm("acme/topic"), None, {"calibrated": False}, profile)
    assert found.warnings == [NOT_CALIBRATED]
    assert replace(found, figures={}).warnings == []


def test_pairs_for_an_hplm_of_single_texts(tiny_home: Home, train: Path, held_out: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{**json.loads(line), "text_pair": "a second text"} for line in held_out.read_text().splitlines()]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for files in ((pairs, held_out), (train, pairs)):
        with pytest.raises(
            TrainingDataError, match=r"pairs.jsonl holds pairs of texts, but hPLM .* reads single texts"
        ):
            select(tiny_home, *files)


def test_single_texts_for_an_hplm_of_pairs(tiny_home: Home, train: Path, held_out: Path) -> None:
    reads_pairs = replace(HplmTask.of(Registry.open(tiny_home).hplm("acme/topic")), pair=True)
    with pytest.raises(
        TrainingDataError, match=r"train.jsonl holds single texts, but hPLM 'acme/topic' reads pairs of texts"
    ):
        material_of(LabelledFiles(train, held_out), reads_pairs, TrainedTexts.of([]), EASY)


@pytest.mark.parametrize("what", ["deleted", "rolled back"])
def test_what_is_live_no_more_gets_no_ladder(tiny_home: Home, train: Path, held_out: Path, what: str) -> None:
    """An update is no such case: it waits for nobody, and says that the hPLM is being built."""
    registry = Registry.open(tiny_home)
    first = registry.hplm("acme/topic")
    with building_hplm(tiny_home, first.id):
        publish_linked(tiny_home, registry, first, ignore, {})

    def change(step: Step) -> None:
        if step.phase == "certify" and what == "deleted":
            registry.delete_hplm(first.id)
        elif step.phase == "certify":
            rollback_hplm(tiny_home, registry, first.id)

    selecting = Selecting(first.id, LabelledFiles(train, held_out), EASY)
    with pytest.raises(ConflictError, match=r"'acme/topic'.* is live no more"):
        select_ladder(tiny_home, registry, selecting, STACK, change)
    assert registry.has_hplm(first.id) == (what == "rolled back")
    assert what == "deleted" or registry.hplm(first.id) == first


@pytest.mark.parametrize("step", ["while it is written", "before it is live"])
def test_a_selection_that_is_killed_leaves_the_live_version_and_can_be_repeated(
    tiny_home: Home, train: Path, held_out: Path, step: str
) -> None:
    """A process of its own publishes, which takes no computation, and is killed on the way."""
    registry = Registry.open(tiny_home)
    live = registry.hplm("acme/topic")

    def killed(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            own = Registry.open(tiny_home)
            if step == "before it is live":
                own.publish_hplm = killed  # type: ignore[method-assign]
            with building_hplm(tiny_home, live.id):
                publish_linked(tiny_home, own, live, killed if step == "while it is written" else ignore, {})
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert registry.hplm(live.id) == live
    again = select(tiny_home, train, held_out)
    assert again.ladder is not None and again.entry.version > live.version and registry.hplm(live.id) == again.entry


def test_one_that_fails_costs_ten_thousand_others_nothing(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which ladders they get is tested elsewhere. What was declared of late rows stays declared."""
    live = Registry.open(tiny_home).hplm("acme/topic")
    live = replace(live, metrics={**live.metrics, DECLARED: Target.of(late="reject").noted})
    many = [replace(live, key=number, id=f"tenant-{number}/topic") for number in range(10_000)]

    def selected(home: Home, registry: object, selecting: Selecting, *_: object) -> Selection:
        assert selecting.target == Target.of(agreement=0.9, late="reject")
        if selecting.id == "tenant-77/topic":
            raise TrainingDataError("no text is left")
        number = int(selecting.id.split("/")[0].split("-")[1])
        return Selection(many[number], None, {}, Profile(selecting.id, "", 0.1, None, 2, []))

    monkeypatch.setattr("builder.levels.selecting_all.select_ladder", selected)
    registry, steps = SimpleNamespace(hplms=lambda: many), list[Step]()
    texts = plain(tmp_path / "plain.txt", 300, seed=915)
    rows = select_all(tiny_home, registry, texts, LadderTarget(agreement=0.9), (), STACK, steps.append)  # type: ignore[arg-type]
    assert [row["id"] for row in rows if row["outcome"] != "selected"] == ["tenant-77/topic"]
    assert len(rows) == 10_000 and steps[-1] == Step("select", 10_000, 10_000)
