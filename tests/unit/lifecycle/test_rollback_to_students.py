"""What a rollback says of students that a version has adapters for."""

from __future__ import annotations

import shutil

import pytest
import torch

from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from bench.kit.random_students import random_students
from builder.construct.hplm.hplms import building_hplm, publish_linked
from builder.lifecycle.rollback import rollback_hplm, unusable_students
from cli.versions import rollback
from seeds import SEED

TOPIC = "acme/topic"


def offered(students: StudentSet) -> dict[str, object]:
    return {"students": {"set": students.fingerprint, "best": 1, "depth": 0.5}}


@pytest.fixture
def students(tiny_home: Home) -> StudentSet:
    """Students of the root; version 2 is made for them, version 3 is not."""
    registry = Registry.open(tiny_home)
    made = random_students(RootFolder(tiny_home.root("tiny")), 1, 1, torch.Generator().manual_seed(SEED))
    for figures in (offered(made), {"students": None}):
        with building_hplm(tiny_home, TOPIC):
            publish_linked(tiny_home, registry, registry.hplm(TOPIC), lambda folder: None, figures)
    return made


def test_students_that_a_version_cannot_use_any_more_are_told(tiny_home: Home, students: StudentSet) -> None:
    registry = Registry.open(tiny_home)
    assert unusable_students(tiny_home, registry.hplm(TOPIC)) is None
    entry = rollback_hplm(tiny_home, registry, TOPIC)
    assert (entry.version, unusable_students(tiny_home, entry)) == (2, None)
    shutil.rmtree(students.path)
    assert unusable_students(tiny_home, entry) == "root 'tiny' has no students any more"
    other = random_students(RootFolder(tiny_home.root("tiny")), 2, 1, torch.Generator().manual_seed(SEED))
    assert unusable_students(tiny_home, entry) == "the students of root 'tiny' were replaced after version 2"
    (other.path / "manifest.json").write_text("{}")
    reason = unusable_students(tiny_home, entry)
    assert reason is not None and reason.startswith("the students of root 'tiny' cannot be read: ")


def test_the_command_warns(tiny_home: Home, students: StudentSet, capsys: pytest.CaptureFixture[str]) -> None:
    rollback(TOPIC, home=tiny_home.path)
    assert capsys.readouterr().err == ""
    rollback(TOPIC, to=3, home=tiny_home.path)
    shutil.rmtree(students.path)
    rollback(TOPIC, home=tiny_home.path)
    said = capsys.readouterr()
    assert "acme/topic is at version 2 again" in said.out
    assert "students are errors, because root 'tiny' has no students any more; 'hplm students add" in said.err
