"""The tasks of `bench.quality`: every folder below `tasks/` of a data folder, cut to what a run can afford."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from backends.errors import NotFoundError, TrainingDataError
from backends.storage import file_checksum
from builder.construct.tasks.dataset import REGRESSION, TaskData, TaskFiles, detected_task, read_task
from builder.construct.tasks.examples import LabelledText, normalised
from demo.harvest import harvest
from demo.tasks import demo_tasks, write_lines, write_task
from demo.texts import general_corpus

ExampleT = TypeVar("ExampleT")
_EVERYDAY: Mapping[str, int] = MappingProxyType({"mrpc": 1, "stsb": 1, "sst2": 2, "clinc150": 2})
"""Tasks in everyday language, which no corpus has; and how many of their texts are about as long as a sentence."""
_SENTENCES_OF_A_PASSAGE = range(1, 7)
_ROUNDS = 6
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Caps:
    """How many examples of each split are used at most, drawn once for all runs."""

    train: int | None = 5000
    dev: int | None = 1000
    test: int | None = None
    seed: int = 2024


_WHOLE = Caps(train=None, dev=None)


def task_names(data: Path) -> list[str]:
    folder = data / "tasks"
    if not folder.is_dir():
        raise NotFoundError(f"{folder} does not exist; --data names a folder with corpora/ and tasks/")
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def labelled_task_names(data: Path) -> list[str]:
    """Return the tasks that are no regressions."""
    return [name for name in task_names(data) if _kind(_file(data / "tasks" / name, "train")) != REGRESSION]


def task_checksums(data: Path, name: str) -> list[str]:
    """Return the checksums of a task's files."""
    return [file_checksum(path) for path in sorted((data / "tasks" / name).iterdir())]


def load_task(data: Path, name: str, caps: Caps) -> TaskData:
    files = TaskFiles(*(_file(data / "tasks" / name, split) for split in SPLITS))
    whole = read_task(files, _kind(files.train))
    train, dev, test = (_drawn(getattr(whole, split), getattr(caps, split), caps.seed) for split in SPLITS)
    return replace(whole, train=train, dev=dev, test=test)


def write_everyday(data: Path, folder: Path, seed: int = 5) -> Path | None:
    """Passages in everyday language, one per line; none where the data folder has no such tasks.

    They are put together from texts to train on, each in other company six times; what a file to measure on has, too,
    of whatever task, is left out.
    """
    found = {name: size for name, size in _EVERYDAY.items() if (data / "tasks" / name).is_dir()}
    if not found:
        return None
    measured_on = {text for name in task_names(data) for text in _texts_of(data, name, ("dev", "test"))}
    texts = {name: _unmeasured(data, name, measured_on) for name in found}
    rng = random.Random(seed)
    passages: list[str] = []
    for _ in range(_ROUNDS):
        for name, size in found.items():
            left = list(texts[name])
            rng.shuffle(left)
            while left:
                length = rng.choice(_SENTENCES_OF_A_PASSAGE) * size
                passages.append(" ".join(left[:length]))
                left = left[length:]
    rng.shuffle(passages)
    path = folder / "everyday.txt"
    write_texts(path, passages)
    return path


def _unmeasured(data: Path, name: str, measured_on: Collection[tuple[str, ...]]) -> list[str]:
    return sorted({text for key, text in _texts_of(data, name, ("train",)).items() if key not in measured_on})


def _texts_of(data: Path, name: str, splits: Sequence[str]) -> dict[tuple[str, ...], str]:
    """A task's texts, each half of a pair for itself, by what makes them the same text."""
    task = load_task(data, name, _WHOLE)
    examples = [one for split in splits for one in getattr(task, split)]
    halves = [half for one in examples for half in (one.text, one.text_pair) if half is not None]
    return {normalised(LabelledText(half, "")): half for half in halves}


def _file(folder: Path, split: str) -> Path:
    found = sorted(folder.glob(f"{split}.*"))
    if not found:
        raise NotFoundError(f"{folder} holds no {split} file")
    return found[0]


def _kind(train: Path) -> str:
    """Numbers as labels make a regression."""
    kind = detected_task(train)
    if kind == "classification":
        try:
            read_task(TaskFiles(train, train), REGRESSION)
        except TrainingDataError:  # some label is no number
            return kind
        return REGRESSION
    return kind


def _drawn(examples: Sequence[ExampleT], cap: int | None, seed: int) -> Sequence[ExampleT]:
    if cap is None or len(examples) <= cap:
        return examples
    kept = np.sort(np.random.default_rng(seed).choice(len(examples), cap, replace=False))
    return [examples[index] for index in kept]


def write_demo_tasks(folder: Path) -> Path:
    """The demo's own tasks, laid out like a data folder."""
    found = harvest()
    tasks = demo_tasks(found)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "general.txt", general_corpus(found, tasks))
    for task in tasks:
        target = folder / "tasks" / task.id.replace("/", "-")
        target.mkdir(parents=True, exist_ok=True)
        for split, path in write_task(task, folder / "written").items():
            path.replace(target / f"{split}{path.suffix}")
    return folder


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """In one step: trials beside each other write and read the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    write_lines(staged, texts)
    staged.replace(path)
