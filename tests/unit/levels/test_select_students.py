"""`hplm select` for a version with students: what each number of them loses, and to how few the load may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adapter_reference import reference_student_logits
from backends.adapters.bank import read_artifact
from backends.adapters.student_adapters import read_student_adapters
from backends.engine.stack import UpperStack
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students
from bench.kit.random_students import random_students
from bench.kit.tiny_home import ignore, write_tagged, write_task, write_values
from builder.construct.hplm.hplms import create_hplm
from builder.construct.hplm.states import encoded_set
from builder.construct.students.add import add_students
from builder.construct.tasks.dataset import TaskData, read_examples
from builder.construct.tasks.task_objectives import objective_of
from builder.levels.answers import StepAnswers
from builder.levels.certificate import balance_of
from builder.levels.guarantee import Balance, Each, EachInParts, EachOnBalance
from builder.levels.paired_answers import effect_of
from builder.levels.profile import StudentsProfile, read_profile
from builder.levels.selecting import Selection
from builder.levels.served import served_rows
from builder.levels.student_counts import fewest, with_fewest
from builder.levels.target import Target
from builder.requests.hplms import CreateHplm
from builder.requests.students import AddStudents
from seeds import SEED
from selection_cases import STACK, select, written

TOPIC = "acme/topic"
COUNT, DEPTH = 2, 0.5
LOOSE = Target.of(max_drop=45)


def with_students(home: Home, files: tuple[Path, Path], id: str, **tune: Any) -> None:
    root = RootFolder(home.root("tiny"))
    if read_students(root) is None:
        random_students(root, COUNT, 1, torch.Generator().manual_seed(SEED))
    tune = {"epochs": 4, "learning_rate": 1e-2, "recipe": {"rank": 4}, **tune}
    add_students(home, Registry.open(home), AddStudents(id=id, train=files[0], dev=files[1], tune=tune), ignore)


@pytest.fixture
def home(tiny_home: Home, tmp_path: Path) -> Home:
    with_students(tiny_home, write_task(tmp_path / "topic", "topic", seed=100, train=160), TOPIC)
    return tiny_home


def lost_by(home: Home, found: Selection, file: Path, task: Any) -> tuple[list[Balance], int]:
    """Count anew: the stored students one text at a time, in fp32, against all layers; by number, of all texts."""
    root = RootFolder(home.root("tiny"))
    students, folder = StudentSet(root.path / "students", root), home.path / found.entry.folder
    plain = read_artifact(folder, root.fingerprint)
    artifact = plain.with_students(read_student_adapters(folder), students)
    examples = read_examples(file, task)
    objective = objective_of(TaskData(task, found.entry.labels, examples, examples))
    texts = encoded_set(home, found.entry.domain, objective, examples, "texts", ignore)
    (full,) = served_rows(UpperStack(root, STACK), plain, (1,), objective, texts, "texts", ignore)
    lost = []
    for count in range(1, found.entry.best_students + 1):
        each = [
            reference_student_logits(students, artifact, torch.as_tensor(row).float(), count)[None]
            for row in texts.rows
        ]
        of_full, of_each = (StepAnswers.of(objective, answers, texts.targets) for answers in (full.logits, each))
        lost.append(balance_of(effect_of(of_full, of_each)))
    return lost, len(examples)


def test_what_students_lose_is_counted_and_tested(home: Home, train: Path, held_out: Path) -> None:
    found = select(home, train, held_out, LOOSE)
    profiles = found.profile.students
    assert found.ladder is not None and [each.students for each in profiles] == [*range(1, len(profiles) + 1)]
    lost, texts = lost_by(home, found, held_out, "classification")
    assert found.figures["held_out_texts"] == texts
    for each, balance in zip(profiles, lost, strict=True):
        # Rows of 32 in one batch round otherwise than rows alone, so an answer near the border may change.
        assert each.lost == pytest.approx((balance.harms - balance.helps) / texts, abs=5 / texts), f"seed {SEED}"
        assert each.bound == pytest.approx(EachOnBalance(0.1).bound(balance, texts), abs=6 / texts), f"seed {SEED}"
        assert each.keeps == all(one.bound <= 0.45 for one in profiles[each.students - 1 :])
    kept = fewest(profiles)
    assert kept is not None, profiles
    offered = Registry.open(home).hplm(TOPIC).students
    assert offered is not None and offered.least == kept.students
    assert found.entry.way("students").least_depth == kept.students * DEPTH
    assert found.entry.way("students-1").least_depth == DEPTH
    assert read_profile(home.path / found.entry.folder) == found.profile
    again = select(home, train, held_out, Target.of(max_drop=45, guarantee="fleet"))
    assert again.ladder is not None and again.entry.students is not None
    assert again.entry.students.least == 1 and fewest(again.profile.students) is None
    assert [one for one in again.warnings if "--guarantee fleet says nothing of them" in one]


def profile(students: int, keeps: bool) -> StudentsProfile:
    return StudentsProfile(students, keeps, 0.0, 0.1, None, None)


def test_the_fewest_are_those_down_to_which_all_pass() -> None:
    figures, compared = {"set": "some", "best": 3, "least": 3}, {"compared": LOOSE.shown}
    some = [profile(1, False), profile(2, True), profile(3, True)]
    assert with_fewest(figures, some, LOOSE) == {"set": "some", "best": 3, "least": 2, **compared}
    none = [replace(each, keeps=False) for each in some]
    assert with_fewest(figures, none, LOOSE) == {"set": "some", "best": 3, **compared}
    assert with_fewest(figures, [], LOOSE) == figures, "those that were not compared keep what was found"


def test_students_that_lose_too_much_are_said_to(tiny_home: Home, tmp_path: Path, train: Path, held_out: Path) -> None:
    files = write_task(tmp_path / "topic", "topic", seed=100, train=32)
    with_students(tiny_home, files, TOPIC, epochs=1, learning_rate=1e-6)
    found = select(tiny_home, train, held_out, Target.of(max_drop=20))
    assert found.ladder is not None and fewest(found.profile.students) is None, found.profile.students
    assert [one for one in found.warnings if "no number of students keeps" in one]
    assert found.entry.students is not None and found.entry.students.least == 1


def test_texts_that_chose_the_students_are_said_to(tiny_home: Home, tmp_path: Path, train: Path) -> None:
    files = write_task(tmp_path / "topic", "topic", seed=100, train=32)
    with_students(tiny_home, files, TOPIC, epochs=1)
    both = tmp_path / "both.jsonl"
    both.write_text(files[1].read_text() + written(tmp_path / "more.jsonl", "topic", 300, seed=907).read_text())
    found = select(tiny_home, train, both)
    assert found.ladder is not None and [one for one in found.warnings if "chose its students" in one]
    (tiny_home.path / found.entry.folder / "students_chosen_by.hashes").unlink()
    again = select(tiny_home, train, written(tmp_path / "others.jsonl", "topic", 300, seed=908))
    assert [one for one in again.warnings if "unknown which texts chose its students" in one]


def test_damaged_students_do_not_hinder_a_ladder(home: Home, train: Path, held_out: Path) -> None:
    folder = home.path / Registry.open(home).hplm(TOPIC).folder
    (folder / "students.json").write_text("{")
    found = select(home, train, held_out)
    assert found.ladder is not None and found.profile.students == []
    assert [one for one in found.warnings if "students were not compared" in one and "students.json" in one]


@pytest.mark.parametrize(("write", "task"), [(write_tagged, "ner"), (write_values, "regression")])
def test_students_of_other_tasks_are_tested_too(
    tiny_home: Home, tmp_path: Path, write: Callable[..., tuple[Path, Path]], task: Any
) -> None:
    files = write(tmp_path / "task", seed=100, train=64)
    tune = {"epochs": 2, "learning_rate": 1e-2}
    request = CreateHplm(id="acme/new", root="tiny", domain="farm", task=task, train=files[0], dev=files[1], tune=tune)
    create_hplm(tiny_home, Registry.open(tiny_home), request, ignore)
    with_students(tiny_home, files, "acme/new", epochs=2)
    more = write(tmp_path / "more", seed=904, train=300)[0]
    found = select(tiny_home, files[0], more, Target.of(agreement=0.4), id="acme/new")
    guarantee, texts = (EachInParts(0.1) if task == "regression" else Each(0.1)), found.figures["held_out_texts"]
    for each in found.profile.students:
        assert 0 <= each.lost <= each.bound <= 1
        assert each.bound == pytest.approx(guarantee.bound(Balance(each.lost * texts), texts), abs=2e-3)
    assert len(found.profile.students) == found.entry.best_students >= 1
