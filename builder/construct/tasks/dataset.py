"""The files of one task, read together and checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backends.errors import InvalidArgumentError, TrainingDataError
from builder.construct.tasks.conll import OUTSIDE, is_conll, read_sentences
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence, num_shared
from builder.construct.tasks.jsonl import read_classes, read_values

CLASSIFICATION, NER, REGRESSION = "classification", "ner", "regression"
_READERS: Mapping[str, Callable[[Path], Sequence[Any]]] = MappingProxyType(
    {CLASSIFICATION: read_classes, NER: read_sentences, REGRESSION: read_values}
)


@dataclass(frozen=True)
class TaskFiles:
    """`dev` chooses the best epoch; `test` is only measured."""

    train: Path
    dev: Path
    test: Path | None = None


@dataclass(frozen=True)
class TaskData:
    """All examples of one task; a regression has no labels.

    `leaks` counts texts that a file shares with the training file, which makes what is measured on it too good.
    """

    task: str
    labels: tuple[str, ...]
    train: Sequence[Example]
    dev: Sequence[Example]
    test: Sequence[Example] = ()
    leaks: dict[str, int] = field(default_factory=dict)

    @property
    def pair(self) -> bool:
        return self.train[0].text_pair is not None


def read_task(files: TaskFiles, task: str | None = None) -> TaskData:
    """Read and check the files; without `task`, CoNLL files are NER and others classification."""
    task = task or detected_task(files.train)
    train, dev = read_examples(files.train, task), _READERS[task](files.dev)
    test = _READERS[task](files.test) if files.test else []
    for path, examples in ((files.dev, dev), (files.test, test)):
        if examples and path is not None:
            _require_same_kind(train[0], files.train, examples[0], path)
    leaks = {"dev_in_train": num_shared(dev, train), "test_in_train": num_shared(test, train)}
    return TaskData(task, _LABELS[task](train, dev, files), train, dev, test, leaks)


def read_examples(path: Path, task: str) -> Sequence[Any]:
    """Read one file of a task."""
    if task not in _READERS:
        raise InvalidArgumentError(f"task {task!r} is not one of {', '.join(_READERS)}")
    if task != NER and is_conll(path):
        raise TrainingDataError(f"{path} looks like token<TAB>tag lines, as for the task ner, not {task}")
    return _READERS[task](path)


def detected_task(path: Path) -> str:
    return NER if is_conll(path) else CLASSIFICATION


def _require_same_kind(first: Example, first_path: Path, other: Example, path: Path) -> None:
    kinds = ["single texts" if example.text_pair is None else "pairs of texts" for example in (first, other)]
    if kinds[0] != kinds[1]:
        raise TrainingDataError(f"{path} holds {kinds[1]}, but {first_path} holds {kinds[0]}")


def _classes(train: Sequence[LabelledText], dev: Sequence[LabelledText], files: TaskFiles) -> tuple[str, ...]:
    labels = tuple(sorted({str(example.label) for example in train}))
    if len(labels) < 2:
        raise TrainingDataError(f"{files.train} holds one class only ({labels[0]!r}); a classifier needs at least two")
    if unknown := sorted({str(example.label) for example in dev} - set(labels)):
        raise TrainingDataError(f"{files.dev} has label {unknown[0]!r}, which {files.train} lacks")
    return labels


def _tags(train: Sequence[TaggedSentence], dev: Sequence[TaggedSentence], files: TaskFiles) -> tuple[str, ...]:
    """O and both tags of every kind of entity, whether or not it ever has a second word."""
    kinds = _entity_kinds(train)
    if not kinds:
        raise TrainingDataError(f"{files.train} holds no entity; all its tags are {OUTSIDE}")
    if unknown := sorted(_entity_kinds(dev) - kinds):
        raise TrainingDataError(f"{files.dev} has entities {unknown[0]!r}, which {files.train} lacks")
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(kinds) for prefix in "BI"))


def _entity_kinds(sentences: Sequence[TaggedSentence]) -> set[str]:
    return {tag[2:] for sentence in sentences for tag in sentence.tags if tag != OUTSIDE}


def _no_labels(train: Sequence[LabelledText], dev: Sequence[LabelledText], files: TaskFiles) -> tuple[str, ...]:
    for path, examples in ((files.train, train), (files.dev, dev)):
        if len({example.label for example in examples}) < 2:
            raise TrainingDataError(f"{path}: every label is {examples[0].label}; a regression needs different values")
    return ()


_LABELS: Mapping[str, Callable[[Sequence[Any], Sequence[Any], TaskFiles], tuple[str, ...]]] = MappingProxyType(
    {CLASSIFICATION: _classes, NER: _tags, REGRESSION: _no_labels}
)
