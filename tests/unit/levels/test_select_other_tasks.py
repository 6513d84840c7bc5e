"""`hplm select` for hPLMs that answer with numbers or entities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.engine.stack import UpperStack
from backends.errors import InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, tiny_root, write_tagged, write_values
from builder.construct.hplm.hplms import create_hplm
from builder.construct.hplm.states import encoded_set
from builder.construct.tasks.dataset import TaskData, read_examples
from builder.construct.tasks.task_objectives import objective_of
from builder.levels.paired_answers import NumberPairs
from builder.levels.profile import read_profile
from builder.levels.selecting import Selecting, Selection, select_ladder
from builder.levels.served import answered_rows, served_rows
from builder.levels.target import Target
from builder.requests.hplms import CreateHplm
from selection_cases import STACK, plain, select, written


def made(home: Home, work: Path, files: Sequence[Path], task: str, hplm: str) -> None:
    tune = {"epochs": 2, "learning_rate": 1e-2}
    request = CreateHplm(
        id=hplm,
        root="tiny",
        domain="general",
        train=files[0],
        dev=files[1],
        task=task,
        tune=tune,  # type: ignore[arg-type]
    )
    create_hplm(home, Registry.open(home), request, ignore)


@pytest.fixture(scope="module")
def other_tasks(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with an hPLM for numbers and one for entities, of three upper layers."""
    work = tmp_path_factory.mktemp("other_tasks")
    home = Home(work / "home")
    tiny_root(home, Registry.open(home, create=True), work, lower=1)
    made(home, work, write_values(work / "values", seed=7), "regression", "acme/worth")
    made(home, work, write_tagged(work / "tagged", seed=8), "ner", "acme/things")
    return home


def test_entities_have_ladders(other_tasks: Home, tmp_path: Path) -> None:
    train, _ = write_tagged(tmp_path / "tagged", seed=8)
    held_out = write_tagged(tmp_path / "more", seed=904, train=400)[0]
    found = select(other_tasks, train, held_out, Target.of(max_drop=40), id="acme/things")
    assert found.ladder is not None and found.entry.levels == ("early", "full")
    check_that_less_is_kept_of_the_same(other_tasks, found, held_out)


def test_numbers_have_ladders(other_tasks: Home, tmp_path: Path) -> None:
    """Counted again on other texts: on average, early numbers are as near to full ones as was promised."""
    train, _ = write_values(tmp_path / "values", seed=7)
    held_out, _ = write_values(tmp_path / "more", seed=904, train=400)
    with pytest.raises(InvalidArgumentError, match="answers with numbers, which have no accuracy"):
        select(other_tasks, train, held_out, Target.of(target_accuracy=0.5), id="acme/worth")
    with pytest.raises(TrainingDataError, match="'label' must be a number for regression"):
        select(other_tasks, train, written(tmp_path / "topics.jsonl", "topic", 400, seed=901), id="acme/worth")
    found = select(other_tasks, train, held_out, Target.of(max_drop=20), id="acme/worth", after=(2, 1))
    assert found.ladder is not None, found.reason
    assert found.figures["tried"] == found.entry.metrics["declared"]["after"] == [1, 2]
    assert found.figures["after"] == found.ladder.early.after
    check_that_the_cheapest_is_chosen(other_tasks, found)
    figures, step = found.figures, found.ladder.early
    assert figures["answered_early"] > 0 and 0 < figures["disagreement"] < 1
    assert {"full_pearson", "pearson"} <= figures.keys() and "full_accuracy" not in figures
    assert step.scale is not None and found.entry.levels == ("early", "full")
    others = write_values(tmp_path / "others", seed=905, train=300)[0]
    root, entry = RootFolder(other_tasks.root("tiny")), found.entry
    artifact, examples = (
        read_artifact(other_tasks.path / entry.folder, root.fingerprint),
        read_examples(others, entry.task),
    )
    objective = objective_of(TaskData(entry.task, entry.labels, examples, examples))
    texts, stack = encoded_set(other_tasks, entry.domain, objective, examples, "texts", ignore), UpperStack(root, STACK)
    (rows,) = answered_rows(stack, artifact, {step.after: step.head}, objective, texts, "texts", ignore)
    answers = NumberPairs(torch.cat(list(rows.early)), torch.cat(list(rows.full)), step.scale, None, texts.targets)
    leaves = answers.confidence(step.temperature) >= step.threshold
    assert (answers.different * leaves).mean() <= 0.2
    assert abs(leaves.mean() - figures["answered_early"]) < 0.2


def check_that_the_cheapest_is_chosen(home: Home, found: Selection) -> None:
    """Compare two candidates and all layers by the stored profile."""
    profile = read_profile(home.path / found.entry.folder)
    assert profile == found.profile and profile is not None and profile.chosen == found.figures["after"]
    first, second, whole = profile.candidates
    assert (first.after, second.after, whole.after, profile.layers) == (1, 2, 3, 3)
    layers = {each.after: 3 - each.answered_early * (3 - each.after) for each in profile.candidates}
    assert layers[profile.chosen] == min(layers.values())
    assert (whole.lost, whole.bound, whole.memory_bytes, whole.alone_ms) == (0.0, 0.0, 0, None)
    for each in (first, second):
        assert each.curve and each.curve[0].answered_early <= each.curve[-1].answered_early
        assert all(point.lost <= point.bound for point in each.curve)
        assert each.threshold is None or each.bound <= profile.tolerance


@pytest.mark.long
def test_numbers_without_labels_certify_that_they_stay(other_tasks: Home, tmp_path: Path) -> None:
    texts, registry = plain(tmp_path / "plain.txt", 900, seed=911), Registry.open(other_tasks)
    selecting = Selecting("acme/worth", texts, Target.of(agreement=0.8, guarantee="fleet"))
    found = select_ladder(other_tasks, registry, selecting, STACK, ignore)
    assert found.ladder is not None, found.reason
    assert not {"full_pearson", "pearson"} & found.figures.keys() and found.figures["bound"] <= 0.2


def check_that_less_is_kept_of_the_same(home: Home, found: Selection, file: Path) -> None:
    """Rows of words: one answer of some, evenly spread, and a head's answers in place of states."""
    root, entry, ladder = RootFolder(home.root("tiny")), found.entry, found.ladder
    artifact, examples = read_artifact(home.path / entry.folder, root.fingerprint), read_examples(file, entry.task)[:40]
    assert ladder is not None
    head = ladder.early.head
    objective = objective_of(TaskData(entry.task, entry.labels, examples, examples))
    texts, stack = encoded_set(home, entry.domain, objective, examples, "texts", ignore), UpperStack(root, STACK)
    rows, later = served_rows(stack, artifact, (1, 2), objective, texts, "texts", ignore)
    states, logits = torch.cat(list(rows.states)), torch.cat(list(rows.logits))
    assert len(states) > 5 * len(examples)
    for every in (2, 7, 1000):
        (some,) = served_rows(stack, artifact, (1,), objective, texts, "texts", ignore, every)
        assert torch.equal(torch.cat(list(some.states)), states[::every])
        assert torch.equal(torch.cat(list(some.logits)), logits[::every])
    heads = {1: head, 2: head}
    for answered, of_layer in zip(
        answered_rows(stack, artifact, heads, objective, texts, "texts", ignore), (rows, later), strict=True
    ):
        assert all(map(torch.equal, answered.early, of_layer.answered_by(head)))
        assert all(map(torch.equal, answered.full, rows.logits))
