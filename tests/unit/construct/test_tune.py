"""Tuning itself, on random rows: what it learns from, when it ends, and that an interruption changes nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact, read_artifact, write_artifact
from backends.adapters.head import Head
from backends.adapters.recipe import AdapterRecipe
from backends.errors import HplmError
from backends.home import Home
from backends.root.store import RootFolder
from backends.root.words import RowWords
from bench.kit.tiny_home import ignore
from builder.construct.hplm.state_rows import StateRows
from builder.construct.hplm.teacher_data import TeacherData, TeacherStates
from builder.construct.hplm.trainable import read
from builder.construct.hplm.trainer import BestEpoch
from builder.construct.hplm.tunable import EncodedSet, Tuned, scaled
from builder.construct.hplm.tune import TuneSettings, Upper, evaluate, predict, tune
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.ner import Ner
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import Classification, Regression
from builder.construct.training.checkpoint import Checkpoint
from builder.progress import Step

SMALL = AdapterRecipe(width=4)


class Interrupted(Exception):  # noqa: N818 - not an error of ours
    pass


@pytest.fixture(scope="module")
def upper(built_home: Home) -> Upper:
    root = RootFolder(built_home.root("tiny"))
    return Upper(root.upper(), root.geometry)


def random_set(objective: Objective[Any], examples: Sequence[Any], seed: int, lengths: Sequence[int]) -> EncodedSet:
    """Rows that point, in their first token, in a direction of their own label."""
    order = torch.Generator().manual_seed(seed)
    words = [_words(length - 2) if objective.about_words else None for length in lengths]
    targets = objective.targets(examples, words)
    directions = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    rows = []
    for length, target in zip(lengths, targets, strict=True):
        row = torch.randn(length, 64, generator=order)
        if objective.about_words:
            row[target.first_tokens] += 3 * directions[target.tags]
        else:
            row += directions[int(target)]
        rows.append(row.half())
    return EncodedSet(rows, targets, np.array(lengths), [None] * len(rows))


def _words(count: int) -> RowWords:
    """One-letter words with one piece each."""
    places = np.arange(count, dtype=np.int32)
    return RowWords(places + 1, 2 * places, 2 * places + 1)


def task(name: str, seed: int, count: int = 24) -> tuple[Objective[Any], EncodedSet]:
    chance = random.Random(seed)
    lengths = [chance.randint(3, 9) for _ in range(count)]
    if name == "ner":
        tagged = [_tagged(chance, length - 2) for length in lengths]
        ner = Ner(("O", "B-X", "I-X"), tagged)
        return ner, random_set(ner, tagged, seed, lengths)
    if name == "regression":
        valued = [LabelledText("a", float(chance.randint(0, 5))) for _ in lengths]
        regression = Regression(valued)
        return regression, random_set(regression, valued, seed, lengths)
    texts = [LabelledText("a", chance.choice("xyz")) for _ in lengths]
    classes = Classification("xyz", texts)
    return classes, random_set(classes, texts, seed, lengths)


def _tagged(chance: random.Random, num_words: int) -> TaggedSentence:
    tags: list[str] = []
    for _ in range(num_words):
        tags.append(chance.choice(["O", "B-X"] if not tags or tags[-1] == "O" else ["O", "B-X", "I-X"]))
    return TaggedSentence(tuple("w" * num_words), tuple(tags))


@pytest.mark.parametrize("name", ["classification", "regression", "ner"])
def test_each_task_is_learnt(upper: Upper, name: str) -> None:
    objective, train = task(name, 1, 64)
    _, dev = task(name, 2, 64)
    settings = TuneSettings(recipe=SMALL, epochs=12, learning_rate=2e-2, patience=12)
    tuned = tune(upper, objective, train, dev, settings, ignore)
    assert tuned.metrics[objective.main_metric] > 0.8
    assert evaluate(upper, objective, tuned, dev) == tuned.metrics
    if name == "regression":
        assert tuned.metrics["mse"] < 0.5 * float(np.var(dev.targets))  # on the task's own scale


@pytest.mark.parametrize("epochs", [1, 2, 10])
def test_any_number_of_epochs(upper: Upper, epochs: int) -> None:
    objective, train = task("classification", 1, 6)
    steps: list[Step] = []
    settings = TuneSettings(recipe=SMALL, epochs=epochs, rows_per_batch=4, patience=epochs)
    tuned = tune(upper, objective, train, train, settings, steps.append)
    assert 1 <= tuned.epoch <= epochs
    assert [step.done for step in steps] == [*range(1, 2 * epochs + 1)]


def test_it_ends_when_dev_stops_rising_and_keeps_the_best_epoch(upper: Upper) -> None:
    objective, train = task("classification", 1)
    _, dev = task("classification", 2)
    seen: list[Step] = []
    tuned = tune(upper, objective, train, dev, TuneSettings(recipe=SMALL, epochs=40, patience=2), seen.append)
    last_epoch = seen[-2].done  # one batch is one epoch here
    assert tuned.epoch <= last_epoch < 40
    shorter = TuneSettings(recipe=SMALL, epochs=40, patience=2)
    assert tune(upper, objective, train, dev, shorter, ignore).metrics == tuned.metrics
    seen.clear()
    all_epochs = tune(upper, objective, train, dev, TuneSettings(recipe=SMALL, epochs=40), seen.append)
    assert [step.done for step in seen] == [*range(1, 41)]
    assert all_epochs.metrics["accuracy"] >= tuned.metrics["accuracy"]


def same(one: Tuned, other: Tuned) -> bool:
    tensors = [
        {**each.adapters.named(), **{f"head.{n}": t for n, t in each.head.named().items()}} for each in (one, other)
    ]
    return tensors[0].keys() == tensors[1].keys() and all(torch.equal(t, tensors[1][n]) for n, t in tensors[0].items())


def test_an_interrupted_tuning_ends_the_same(upper: Upper, tmp_path: Path) -> None:
    """Dropout, an average and the best epoch go on as they should; `test_training_loop` tests the loop itself."""
    objective, train = task("classification", 1)
    _, dev = task("classification", 2)
    settings = TuneSettings(recipe=SMALL, epochs=6, rows_per_batch=5, patience=6, dropout=0.2, ema_decay=0.5)
    whole = tune(upper, objective, train, dev, settings, ignore)
    checkpoint = Checkpoint(tmp_path / "tuning", "inputs")
    chance = random.Random(4)
    stops = sorted(chance.sample(range(1, 30), 4))

    def until(stop: int, steps: list[int]) -> Any:
        def report(step: Step) -> None:
            steps.append(step.done)
            if step.done == stop:
                raise Interrupted

        return report

    for stop in stops:
        steps: list[int] = []
        with pytest.raises(Interrupted):
            tune(upper, objective, train, dev, settings, until(stop, steps), checkpoint=checkpoint)
        assert len(steps) <= stop
    resumed = tune(upper, objective, train, dev, settings, ignore, checkpoint=checkpoint)
    assert same(resumed, whole)
    assert (resumed.epoch, resumed.metrics) == (whole.epoch, whole.metrics)
    finished: list[Step] = []
    assert same(tune(upper, objective, train, dev, settings, finished.append, checkpoint=checkpoint), whole)
    assert len(finished) == 1


def test_other_inputs_start_anew(upper: Upper, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    objective, train = task("classification", 1)
    settings = TuneSettings(recipe=SMALL, epochs=2)
    tune(upper, objective, train, train, settings, ignore, checkpoint=Checkpoint(tmp_path / "tuning", "one"))
    steps: list[Step] = []
    tune(upper, objective, train, train, settings, steps.append, checkpoint=Checkpoint(tmp_path / "tuning", "two"))
    assert "other inputs" in caplog.text
    assert steps[0].done == 1


@pytest.mark.parametrize("name", ["classification", "regression", "ner"])
def test_a_teacher_is_followed(upper: Upper, name: str) -> None:
    """The teacher says the opposite of the labels, and only it counts."""
    objective, train = task(name, 1, 64)
    teacher_data: list[Tensor] = []
    for target in train.targets:
        if name == "regression":
            teacher_data.append(torch.tensor([[5.0 - target]]))
        else:
            true = target.tags if name == "ner" else torch.tensor([target])
            teacher_data.append(10 * torch.nn.functional.one_hot((true + 1) % 3, 3).float())
    settings = TuneSettings(
        recipe=SMALL, epochs=12, learning_rate=2e-2, patience=12, distil_weight=1.0, temperature=2.0
    )
    opposite = TeacherIsRight(objective, teacher_data)
    tuned = tune(upper, opposite, train, train, settings, ignore, teacher_data=TeacherData((), teacher_data))
    answers = torch.cat(predict(upper, objective, tuned, train))
    wanted = torch.cat(teacher_data)
    if name == "regression":
        assert float(torch.corrcoef(torch.stack([answers[:, 0], wanted[:, 0]]))[0, 1]) > 0.8
    else:
        assert float((answers.argmax(dim=-1) == wanted.argmax(dim=-1)).float().mean()) > 0.8


def other_settings(**changes: Any) -> TuneSettings:
    return replace(TuneSettings(recipe=SMALL, epochs=10, learning_rate=1e-2, patience=10), **changes)


def reading_of(states: Sequence[Tensor], head: Head, pooling: str) -> TeacherStates:
    offsets = np.cumsum([0, *[len(each) for each in states]])
    return TeacherStates(head, StateRows(torch.cat(list(states)).half().numpy(), offsets, np.diff(offsets)), pooling)


LEARNT_BY_STATES = ("classification", "ner")


@pytest.fixture(scope="module", params=["classification", "regression", "ner"])
def taught(upper: Upper, request: pytest.FixtureRequest) -> tuple[Objective[Any], EncodedSet, TeacherData]:
    """A task, and a teacher who answers as an hPLM tuned for it does."""
    objective, train = task(request.param, 1, 64)
    model = tune(upper, objective, train, train, other_settings(seed=5), ignore)
    states = read(upper.model(model), objective, train, upper.device)
    offset, factor = objective.scale
    raw = scaled(model.head.to(torch.float32), -offset / factor, 1 / factor)
    reading = reading_of(states, raw, model.pooling)
    return objective, train, TeacherData((), reading.answers(offset, factor), reading)


def test_a_teachers_states_answer_as_the_model_does(
    upper: Upper, taught: tuple[Objective[Any], EncodedSet, TeacherData]
) -> None:
    objective, train, teacher_data = taught
    model = tune(upper, objective, train, train, other_settings(seed=5), ignore)
    wanted = predict(upper, objective, model, train)
    largest = max(float(each.abs().max()) for each in wanted)
    for answer, expected in zip(teacher_data.answers, wanted, strict=True):
        torch.testing.assert_close(answer, expected, atol=5e-3 * largest, rtol=0)


@pytest.mark.parametrize("taught", LEARNT_BY_STATES, indirect=True)
def test_states_are_followed_where_they_count(
    upper: Upper, taught: tuple[Objective[Any], EncodedSet, TeacherData]
) -> None:
    objective, train, teacher_data = taught
    assert teacher_data.states is not None
    reading = teacher_data.states

    def distance(states_weight: float) -> float:
        settings = other_settings(states_weight=states_weight)
        tuned = tune(upper, objective, train, train, settings, ignore, teacher_data=teacher_data)
        states = read(upper.model(tuned), objective, train, upper.device)
        return float(reading.distance(torch.cat(states), np.arange(len(states))))

    assert distance(2.0) < 0.5 * distance(0.0)


@pytest.mark.parametrize("taught", LEARNT_BY_STATES, indirect=True)
def test_a_new_head_starts_as_the_teachers_and_one_that_was_there_stays(
    upper: Upper, taught: tuple[Objective[Any], EncodedSet, TeacherData]
) -> None:
    objective, train, teacher_data = taught
    assert teacher_data.states is not None
    still = other_settings(epochs=1, learning_rate=1e-9)

    def head(reading: TeacherStates | None, start: Tuned | None = None) -> Tensor:
        of_teacher = replace(teacher_data, states=reading)
        tuned = tune(upper, objective, train, train, still, ignore, teacher_data=of_teacher, start=start)
        return tuned.head.weight.float()

    factor = objective.scale[1]
    close = {"atol": 1e-3 * factor, "rtol": 1e-3}
    torch.testing.assert_close(head(teacher_data.states), teacher_data.states.head.weight * factor, **close)
    before = tune(upper, objective, train, train, other_settings(epochs=1), ignore)
    torch.testing.assert_close(head(teacher_data.states, before), before.head.weight.float(), **close)
    otherwise = replace(teacher_data.states, pooling="cls")
    torch.testing.assert_close(head(otherwise), head(None), atol=0, rtol=0)


@pytest.mark.parametrize("taught", ["regression"], indirect=True)
def test_numbers_are_learnt_by_answers_alone(
    upper: Upper, taught: tuple[Objective[Any], EncodedSet, TeacherData]
) -> None:
    objective, train, teacher_data = taught
    settings = other_settings(epochs=2)
    heads = [
        tune(upper, objective, train, train, settings, ignore, teacher_data=each).head.weight
        for each in (teacher_data, replace(teacher_data, states=None))
    ]
    torch.testing.assert_close(*heads, atol=0, rtol=0)


def test_the_distance_is_measured_by_the_spread() -> None:
    """Each word counts the same, whatever its row."""
    states = [torch.tensor([[0.0, 10.0, 7.0]]), torch.tensor([[2.0, 30.0, 7.0], [0.0, 10.0, 7.0], [2.0, 30.0, 7.0]])]
    reading = reading_of(states, Head(torch.ones(1, 3), torch.zeros(1)), "none")
    least = 0.01 * float(torch.cat(states).square().mean().sqrt())
    # Three deviations of 1, two of 10, five of the least, as all states have the same there.
    off = torch.tensor([[2.0 + 3.0, 30.0 - 20.0, 7.0 + 5 * least]])
    asked = torch.cat([off, states[1][1:], states[0]])
    assert float(reading.distance(asked, np.array([1, 0]))) == pytest.approx((9 + 4 + 25) / 12, rel=1e-3)


class TeacherIsRight:
    """An objective whose dev result is how well the teacher is followed."""

    def __init__(self, objective: Objective[Any], teacher_data: list[Tensor]) -> None:
        self._objective, self._lessons = objective, torch.cat(teacher_data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def metrics(self, outputs: Sequence[Tensor], targets: Sequence[Any]) -> dict[str, float]:
        answers = torch.cat(list(outputs))
        return {self._objective.main_metric: -float(self._objective.soft_loss(answers, self._lessons, 1.0))}


def test_starting_from_weights_goes_on_there(upper: Upper) -> None:
    objective, train = task("regression", 1, 64)
    settings = TuneSettings(recipe=SMALL, epochs=8, learning_rate=2e-2, patience=8)
    first = tune(upper, objective, train, train, settings, ignore)
    still = TuneSettings(recipe=SMALL, epochs=1, learning_rate=1e-9)
    again = tune(upper, objective, train, train, still, ignore, start=first)
    assert again.metrics["mse"] == pytest.approx(first.metrics["mse"], rel=0.02)
    assert tune(upper, objective, train, train, still, ignore).metrics["mse"] > 2 * first.metrics["mse"]


def test_what_is_measured_is_what_is_stored(upper: Upper, tmp_path: Path) -> None:
    examples = [LabelledText("a", float(place)) for place in range(8)]
    objective = Regression(examples)
    rows = [torch.full((4, 64), place / 4).half() for place in range(8)]
    train = EncodedSet(rows, objective.targets(examples, [None] * 8), np.array([4] * 8), [None] * 8)
    tuned = tune(upper, objective, train, train, TuneSettings(recipe=SMALL, epochs=2), ignore)
    write_artifact(tmp_path, HplmArtifact("a/b", "f", "regression", (), tuned.pooling, tuned.adapters, tuned.head))
    stored = read_artifact(tmp_path, "f").adapters.named()
    assert any(tensor.any() for tensor in stored.values())
    for name, tensor in tuned.adapters.named().items():
        assert stored[name].dtype == tensor.dtype and torch.equal(stored[name], tensor)


def test_values_of_any_size_are_stored(upper: Upper, tmp_path: Path) -> None:
    examples = [LabelledText("a", 1e6 + 1e5 * place) for place in range(8)]
    objective = Regression(examples)
    lengths = [4] * 8
    rows = [torch.full((4, 64), place / 4).half() for place in range(8)]
    train = EncodedSet(rows, objective.targets(examples, [None] * 8), np.array(lengths), [None] * 8)
    tuned = tune(upper, objective, train, train, TuneSettings(recipe=SMALL, epochs=2), ignore)
    artifact = HplmArtifact("a/b", "f", "regression", (), tuned.pooling, tuned.adapters, tuned.head)
    write_artifact(tmp_path, artifact)
    stored = read_artifact(tmp_path, "f")
    state = torch.randn(64)
    assert torch.equal(stored.head.logits(state), tuned.head.logits(state))
    assert 5e5 < float(stored.head.logits(state)) < 3e6


def test_a_tuning_that_gives_no_numbers_says_so(upper: Upper) -> None:
    objective, train = task("regression", 1)
    train.rows[0][0, 0] = torch.inf
    with pytest.raises(HplmError, match="lower learning rate"):
        tune(upper, objective, train, train, TuneSettings(recipe=SMALL, epochs=3), ignore)


def test_the_average_forgets_the_weights_that_it_began_with(upper: Upper) -> None:
    objective, train = task("regression", 1, 64)
    settings = TuneSettings(recipe=SMALL, epochs=8, learning_rate=2e-2, patience=8)
    plain = tune(upper, objective, train, train, settings, ignore).metrics["mse"]
    averaged = tune(upper, objective, train, train, replace(settings, ema_decay=0.999), ignore).metrics["mse"]
    assert averaged < 2 * plain


def test_a_restored_average_lies_where_the_weights_do() -> None:
    """On a device that no checkpoint was saved from."""
    model = torch.nn.Linear(3, 1, device="meta")
    watch = BestEpoch(model, dict(model.named_parameters()), "mse", lambda _: {}, TuneSettings(ema_decay=0.5))  # type: ignore[arg-type]
    watch.restore({**watch.state(), "average": {name: torch.ones(one.shape) for name, one in model.named_parameters()}})
    assert {tensor.device for tensor in watch.state()["average"].values()} == {torch.device("meta")}
