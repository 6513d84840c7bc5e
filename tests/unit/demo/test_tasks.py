from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from demo.harvest import Harvest, Kind, Snippet
from demo.prose import shingles, words
from demo.recipes import RECIPES, by_module, by_verb
from demo.tasks import DemoTask, Example, demo_tasks, write_task

# The installed packages have the pinned versions, so that few commits can change what is found in them.
of_installed_packages = pytest.mark.long


@of_installed_packages
def test_nine_tasks_of_three_tenants_over_three_domains(installed_tasks: list[DemoTask]) -> None:
    assert [task.id for task in installed_tasks] == [recipe.id for recipe in RECIPES]
    assert len(installed_tasks) == 9
    assert len({task.id.split("/")[0] for task in installed_tasks}) == 3
    assert len({task.domain for task in installed_tasks}) == 3
    assert max(Counter(task.domain for task in installed_tasks).values()) >= 3


@of_installed_packages
def test_splits_have_their_sizes(installed_tasks: list[DemoTask]) -> None:
    for task in installed_tasks:
        assert 400 <= len(task.train) <= 2000
        assert 100 <= len(task.dev) <= 300
        assert 200 <= len(task.test) <= 400


@of_installed_packages
def test_no_label_dominates_and_every_split_has_every_label(installed_tasks: list[DemoTask]) -> None:
    for task in installed_tasks:
        labels = {example.label for example in task.train}
        assert 2 <= len(labels) <= 6
        for examples in task.splits.values():
            counts = Counter(example.label for example in examples)
            assert set(counts) == labels
            assert max(counts.values()) <= 0.58 * len(examples)
            assert min(counts.values()) >= 0.06 * len(examples)


@of_installed_packages
def test_no_two_texts_of_a_task_are_near_duplicates(installed_tasks: list[DemoTask]) -> None:
    for task in installed_tasks:
        texts = [example.text for examples in task.splits.values() for example in examples]
        assert len({tuple(words(text)) for text in texts}) == len(texts)
        own = [shingles(text) for text in texts[:200]]
        for i, first in enumerate(own):
            assert all(2 * len(first & second) <= len(first | second) for second in own[:i])


@of_installed_packages
def test_texts_are_single_clean_lines(installed_tasks: list[DemoTask]) -> None:
    for task in installed_tasks:
        for examples in task.splits.values():
            assert all(example.text == " ".join(example.text.split()) for example in examples)


@of_installed_packages
def test_tasks_depend_on_nothing_but_the_harvest(installed_harvest: Harvest, installed_tasks: list[DemoTask]) -> None:
    reversed_harvest = Harvest(installed_harvest.snippets[::-1])
    assert demo_tasks(reversed_harvest, RECIPES[3:4]) == installed_tasks[3:4]


@of_installed_packages
def test_a_task_without_its_package_is_left_out(installed_harvest: Harvest) -> None:
    without_numpy = Harvest(tuple(installed_harvest.of("stdlib", "torch")))
    left = {task.id for task in demo_tasks(without_numpy)}
    assert {"acme/area", "initech/part"} <= left
    assert not left & {"globex/subject", "acme/library", "acme/topic"}
    assert demo_tasks(Harvest(())) == []


def test_written_tasks_read_back(tmp_path: Path) -> None:
    task = DemoTask(
        "acme/area",
        "stdlib",
        "Which part?",
        train=[Example("Opens “it”.\u2028", "files"), Example('Adds "a" and b.', "numbers")],
        dev=[Example("Closes it.", "files")],
        test=[],
    )
    paths = write_task(task, tmp_path)
    for name, examples in task.splits.items():
        rows = [json.loads(line) for line in paths[name].read_bytes().decode().splitlines()]
        assert rows == [{"text": example.text, "label": example.label} for example in examples]


@pytest.mark.parametrize(
    ("module", "label"),
    [("orm", "mapping"), ("orm.session", "mapping"), ("sql.types", "types"), ("sql.schema", None), ("ormolu", None)],
)
def test_the_longest_module_prefix_gives_the_label(module: str, label: str | None) -> None:
    labeller = by_module({"mapping": "orm", "types": "sql.types x"})
    assert labeller(Snippet("p", module, Kind.CLASS, "C", "text")) == label
    assert labeller(Snippet("p", module, Kind.COMMENT, "", "text")) is None


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Path.is_file", "checks"),
        ("isabstract", "checks"),
        ("_has_code_flag", "checks"),
        ("getattr_static", "reads"),
        ("Message.set_type", "writes"),
        ("Decimal.__add__", None),
        ("isoformat", None),
        ("settings", None),
        ("main", None),
    ],
)
def test_a_function_name_promises_an_action(name: str, label: str | None) -> None:
    assert by_verb(Snippet("p", "m", Kind.FUNCTION, name, "text")) == label
