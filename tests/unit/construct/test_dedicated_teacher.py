"""What a teacher of one's own says of the examples, of texts without labels and of rewritten ones."""

import itertools
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.errors import FingerprintMismatchError, InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_json, write_json
from bench.kit.tiny_home import ignore, sample_texts, write_task, write_tiny_bert
from builder.construct.hplm.dedicated import Dedicated
from builder.construct.hplm.dedicated_teacher import REWRITING, UNLABELLED_PER_EXAMPLE, DedicatedTeacher
from builder.construct.hplm.hplms import create_hplm, live_settings
from builder.construct.hplm.rewriting import Rewriting
from builder.construct.hplm.states import remove_forgotten
from builder.construct.tasks.dataset import TaskData, TaskFiles, read_task
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.progress import Step
from builder.settings.hplm import ClassWeights, TuneSettings
from short_requests import new_hplm

SETTINGS = TuneSettings(epochs=4, rows_per_batch=16, learning_rate=2e-3, head_learning_rate=1e-2, patience=4)
PUPIL = TuneSettings()

TAUGHT_ALONE = ("epochs", "distil_weight", "states_weight", "temperature")


def classification(count: int, seed: int) -> list[LabelledText]:
    return [LabelledText(text.text, text.mood) for text in sample_texts(count, seed)]


def test_an_hplm_learns_from_a_dedicated_model(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    train, dev = write_task(tmp_path / "task", "mood", 40)
    request = new_hplm("acme/taught", "tiny", "farm", train, dev, tune=TuneSettings(epochs=2, distil_weight=0.9))
    steps: list[Step] = []
    entry = create_hplm(
        tiny_home, registry, request, steps.append, DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS)
    )
    assert entry.version == 1
    assert {"fine-tune a whole model", "ask it for its answers", "tune adapters and head"} <= {
        step.phase for step in steps
    }
    again: list[Step] = []
    data = read_task(TaskFiles(train, dev))
    lessons = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS)(data, PUPIL, again.append)
    assert list(lessons.examples[: len(data.train)]) == list(data.train)
    assert len(lessons.examples) == (1 + REWRITING.variants) * len(data.train)
    assert [tuple(answer.shape) for answer in lessons.answers] == [(1, 2)] * len(lessons.examples)
    assert len([step for step in again if step.done < step.total]) == 0  # the finished fine-tuning is not repeated
    assert not list(tiny_home.states.glob(".teacher-*"))
    assert lessons.states is not None
    assert lessons.states.rows.hidden.shape == (len(lessons.examples), 64)
    assert max(path.stat().st_size for path in tiny_home.states.glob(".lessons-*")) < 10_000  # a head, and no model


def test_the_model_is_made_once_until_its_answers_are_there(tiny_home: Home, tmp_path: Path) -> None:
    data = read_task(TaskFiles(*write_task(tmp_path / "task", "mood", 40)))
    teacher = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS)
    model = teacher.model(data, PUPIL, ignore)
    again: list[Step] = []
    lessons = teacher(data, PUPIL, again.append)
    assert {step.phase for step in again if step.done < step.total} == {"ask it for its answers"}
    assert lessons.states is not None
    both = zip(lessons.states.rows, lessons.answers, model.read(lessons.examples), strict=True)
    for kept, answer, states in both:
        torch.testing.assert_close(kept.float(), states, atol=1e-6, rtol=1e-3)
        torch.testing.assert_close(answer, model.model.answer(states).detach(), atol=5e-3, rtol=0)
    assert not list(tiny_home.states.glob(".teacher-*"))


def test_a_teacher_of_other_weights_is_refused(tiny_home: Home, tmp_path: Path) -> None:
    texts = classification(20, 1)
    origin = RootFolder(tiny_home.root("tiny")).manifest.origin
    moved = tmp_path / "moved"
    write_tiny_bert(moved, seed=77)
    manifest = read_json(tiny_home.root("tiny") / "manifest.json")
    write_json(tiny_home.root("tiny") / "manifest.json", {**manifest, "origin": {**origin, "source": str(moved)}})
    with pytest.raises(FingerprintMismatchError, match="moved does not hold the weights"):
        DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS)(
            TaskData("classification", ("glad", "sad"), texts, texts), PUPIL, ignore
        )


def test_texts_without_labels_take_the_place_of_rewritten_ones(tiny_home: Home, tmp_path: Path) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(120, 1), classification(60, 2))
    others = list(dict.fromkeys(each.text for each in classification(300, 3)))
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("\n".join([data.train[0].text, data.dev[0].text.upper(), *others]) + "\n")
    lessons = DedicatedTeacher(tiny_home, "tiny", unlabelled, SETTINGS)(data, PUPIL, ignore)
    count, own = len(data.train), {each.text for each in (*data.train, *data.dev)}
    asked = lessons.examples[count:]
    real = [each for each in asked if each.text in others]
    assert list(lessons.examples[:count]) == list(data.train)
    assert [each.text for each in asked[: len(real)]] == [text for text in others if text not in own]
    assert 1 < len(real) / count < UNLABELLED_PER_EXAMPLE
    assert len(asked) - len(real) == (REWRITING.variants - len(real) // count) * count
    truth = {text.text: text.mood for text in sample_texts(300, 3)}
    said = [data.labels[int(answer.argmax())] for answer in lessons.answers[count : count + len(real)]]
    right = sum(truth[each.text] == answer for each, answer in zip(real, said, strict=True))
    assert right / len(real) > 0.8
    again = DedicatedTeacher(tiny_home, "tiny", unlabelled, SETTINGS)(data, PUPIL, ignore)
    assert again.digest == lessons.digest
    assert again.figures == lessons.figures
    assert again.figures["unlabelled_texts"] == len(real)
    assert again.figures["teacher_dev_accuracy"] > 0.8


def test_no_more_texts_without_labels_than_are_asked_for(tiny_home: Home, tmp_path: Path) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("".join(f"{text.text} number {place}\n" for place, text in enumerate(sample_texts(500, 3))))
    lessons = DedicatedTeacher(tiny_home, "tiny", unlabelled, SETTINGS.changed({"epochs": 1}))(data, PUPIL, ignore)
    real = [each for each in lessons.examples if "number" in each.text]
    assert 0 < len(real) <= UNLABELLED_PER_EXAMPLE * len(data.train)


def test_labels_are_not_asked_of_texts_that_have_none(tiny_home: Home, tmp_path: Path) -> None:
    """Said before the teacher is made, which takes long."""
    train, dev = write_task(tmp_path / "task", "mood", 40)
    unlabelled = tmp_path / "texts.txt"
    unlabelled.write_text("Some text that nobody has labelled.\n")
    request = new_hplm("acme/taught", "tiny", "farm", train, dev, tune=TuneSettings(epochs=1, distil_weight=0.5))
    steps: list[Step] = []
    with pytest.raises(InvalidArgumentError, match=r"distil_weight of 0.5 needs labels, which .*texts.txt does not"):
        create_hplm(
            tiny_home,
            Registry.open(tiny_home),
            request,
            steps.append,
            DedicatedTeacher(tiny_home, "tiny", unlabelled, SETTINGS),
        )
    assert "fine-tune a whole model" not in {step.phase for step in steps}
    assert not Registry.open(tiny_home).has_hplm("acme/taught")


def test_a_file_of_nothing_new_is_refused_before_the_teacher_is_made(tiny_home: Home, tmp_path: Path) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))
    known = tmp_path / "texts.txt"
    known.write_text("".join(f"{each.text}\n" for each in data.dev))
    steps: list[Step] = []
    with pytest.raises(TrainingDataError, match="holds no text that the task's own files lack"):
        DedicatedTeacher(tiny_home, "tiny", known, SETTINGS)(data, PUPIL, steps.append)
    assert not steps


def test_the_teacher_weighs_classes_as_its_pupil_was_asked_to(tiny_home: Home) -> None:
    """A pupil who learns from answers alone cannot do it himself."""
    texts = classification(400, 1)
    rare = [each for each in texts if each.label == "sad"][:12]
    train = [*(each for each in texts if each.label == "glad"), *rare]
    data = TaskData("classification", ("glad", "sad"), train, classification(100, 2))
    asked = data.labels.index("sad")

    def found_sad(class_weights: ClassWeights) -> float:
        settings = SETTINGS.changed({"epochs": 2})
        lessons = DedicatedTeacher(tiny_home, "tiny", settings=settings, rewriting=Rewriting(variants=0))(
            data, TuneSettings(class_weights=class_weights), ignore
        )
        answers = torch.cat(list(lessons.answers)).softmax(dim=-1)
        return float(answers[-len(rare) :, asked].mean())

    assert found_sad("balanced") > found_sad("none") + 0.1


def test_what_was_chosen_with_a_teacher_is_not_inherited_without_one_nor_the_other_way_round(
    tiny_home: Home, tmp_path: Path
) -> None:
    registry = Registry.open(tiny_home)
    train, dev = write_task(tmp_path / "task", "mood", 40, train=40)
    fingerprint = RootFolder(tiny_home.root("tiny")).fingerprint
    tune = TuneSettings(epochs=1, learning_rate=3e-3, distil_weight=0.5, states_weight=0.25, temperature=3.0)
    for hplm, teacher in (("acme/alone", None), ("acme/taught", DedicatedTeacher(tiny_home, "tiny", None, SETTINGS))):
        entry = create_hplm(tiny_home, registry, new_hplm(hplm, "tiny", "farm", train, dev, tune=tune), ignore, teacher)
        artifact = read_artifact(tiny_home.path / entry.folder, fingerprint)
        assert live_settings(artifact, is_taught=teacher is not None) == tune
        defaults = TuneSettings.defaults(is_taught=teacher is None)
        unrequested = {name: getattr(defaults, name) for name in TAUGHT_ALONE}
        assert live_settings(artifact, is_taught=teacher is None) == replace(tune, **unrequested)


def test_a_cache_that_is_cleared_meanwhile_costs_nothing_but_time(tiny_home: Home) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))

    def clear(step: Step) -> None:
        shutil.rmtree(tiny_home.states, ignore_errors=True)

    teacher = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS)
    assert teacher(data, PUPIL, clear).digest == teacher(data, PUPIL, ignore).digest


def test_what_is_kept_comes_back_as_it_was(tiny_home: Home) -> None:
    """Pairs have a state for each half, sentences one for each word."""
    texts = classification(40, 1)
    pairs = [replace(one, text_pair=other.text) for one, other in itertools.pairwise(texts)]
    lengths = [len(one.text.split()) for one in texts]
    sentences = [
        TaggedSentence(tuple(one.text.split()), ("B-mood", *["O"] * (length - 1)))
        for one, length in zip(texts, lengths, strict=True)
    ]
    teacher = DedicatedTeacher(
        tiny_home, "tiny", settings=SETTINGS.changed({"epochs": 1}), rewriting=Rewriting(variants=0)
    )
    tasks = [
        (TaskData("classification", ("glad", "sad"), pairs, pairs), "halves", 4 * 64, [1] * len(pairs)),
        (TaskData("ner", ("O", "B-mood", "I-mood"), sentences, sentences), "none", 64, lengths),
    ]
    for data, pooling, width, counts in tasks:
        steps: list[Step] = []
        first, again = teacher(data, PUPIL, ignore), teacher(data, PUPIL, steps.append)
        assert not steps
        assert first.states is not None and again.states is not None
        assert first.states.pooling == again.states.pooling == pooling
        assert first.states.rows.hidden.shape == (sum(counts), width)
        assert first.states.rows.lengths.tolist() == [len(answer) for answer in first.answers] == counts
        assert np.array_equal(again.states.rows.hidden, first.states.rows.hidden)
        torch.testing.assert_close(again.states.head.weight, first.states.head.weight, atol=0, rtol=0)
        assert again.digest == first.digest


def test_lessons_whose_states_are_gone_are_made_again(tiny_home: Home) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))
    teacher = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS.changed({"epochs": 1}))
    before = teacher(data, PUPIL, ignore)
    (store,) = tiny_home.states.glob(".reading-*")
    (store / "hidden.f16").write_bytes(b"")
    steps: list[Step] = []
    assert teacher(data, PUPIL, steps.append).digest == before.digest
    assert "fine-tune a whole model" in {step.phase for step in steps}


def test_the_teacher_pools_as_its_pupil_does(tiny_home: Home) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))
    teacher = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS.changed({"epochs": 1}))
    readings = [teacher(data, TuneSettings(pooling=pooling), ignore).states for pooling in ("mean", "cls")]
    assert [reading and reading.pooling for reading in readings] == ["mean", "cls"]


def test_states_of_a_model_that_is_gone_are_not_given_to_another_head(tiny_home: Home) -> None:
    """A second fine-tuning need not end as the first did: other threads, other rounding."""
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))
    teacher = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS.changed({"epochs": 1}))
    before = teacher(data, PUPIL, ignore)
    (lessons,) = tiny_home.states.glob(".lessons-*")
    lessons.unlink()
    fine_tune = Dedicated.fine_tune

    def otherwise(*arguments: Any) -> Dedicated:
        dedicated = fine_tune(*arguments)
        with torch.no_grad():
            for parameter in dedicated.model.parameters():
                parameter.mul_(1.01)
        return dedicated

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dedicated, "fine_tune", otherwise)
        after = teacher(data, PUPIL, ignore)
    assert before.states is not None and after.states is not None
    assert not torch.equal(before.states.head.weight, after.states.head.weight)
    assert not np.array_equal(before.states.rows.hidden, after.states.rows.hidden)


def test_two_who_need_one_model_make_it_once(tiny_home: Home) -> None:
    data = TaskData("classification", ("glad", "sad"), classification(20, 1), classification(20, 2))
    teacher = DedicatedTeacher(tiny_home, "tiny", settings=SETTINGS.changed({"epochs": 1}))
    steps: list[list[Step]] = [[], []]
    at_work, second_waits = threading.Event(), threading.Event()

    def first(step: Step) -> None:
        steps[0].append(step)
        at_work.set()
        assert second_waits.wait(60)

    def second(step: Step) -> None:
        steps[1].append(step)
        second_waits.set()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(teacher, data, PUPIL, first)
        assert at_work.wait(60)
        (lock,) = tiny_home.states.glob(".lock-*")
        os.utime(lock, (0, 0))  # as of a build that works for days
        remove_forgotten(tiny_home)
        other = pool.submit(teacher, data, PUPIL, second)
        assert one.result().digest == other.result().digest
    assert {step.phase for step in steps[0]} == {"fine-tune a whole model", "ask it for its answers"}
    assert {step.phase for step in steps[1]} == {"wait for another build's model"}
