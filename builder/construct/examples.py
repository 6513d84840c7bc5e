"""Labelled texts from JSONL files; whatever is wrong with one is said with file and line number."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from backends.errors import NotFoundError, TrainingDataError


@dataclass(frozen=True)
class Example:
    text: str
    label: str


def read_examples(path: Path) -> list[Example]:
    """One `{"text": …, "label": …}` per line; blank lines are allowed, an empty file is not."""
    if not path.is_file():
        raise NotFoundError(f"training file {path} does not exist")
    lines = path.read_bytes().splitlines()
    examples = [_example(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not examples:
        raise TrainingDataError(f"{path} holds no examples")
    return examples


def label_set(train: list[Example], dev: list[Example], train_path: Path, dev_path: Path) -> tuple[str, ...]:
    """The labels of a task in a fixed order, after checking that both files can serve it."""
    labels = tuple(sorted({example.label for example in train}))
    if len(labels) < 2:
        raise TrainingDataError(f"{train_path} holds one class only ({labels[0]!r}); a classifier needs at least two")
    if unknown := sorted({example.label for example in dev} - set(labels)):
        raise TrainingDataError(f"{dev_path} has label {unknown[0]!r}, which {train_path} lacks")
    return labels


def majority_share(examples: list[Example]) -> float:
    counts = Counter(example.label for example in examples)
    return max(counts.values()) / len(examples)


def _example(line: bytes, where: str) -> Example:
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TrainingDataError(f"{where}: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise TrainingDataError(f"{where}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TrainingDataError(f'{where}: not an object {{"text": …, "label": …}}')
    for name in ("text", "label"):
        if not isinstance(content.get(name), str) or not content[name].strip():
            raise TrainingDataError(f"{where}: {name!r} is missing, empty or not a string")
        if not _is_unicode(content[name]):
            raise TrainingDataError(f"{where}: {name!r} holds half of a surrogate pair, which is no character")
    if content.get("text_pair") is not None:
        raise TrainingDataError(f"{where}: has a 'text_pair'; pairs are not supported yet")
    return Example(content["text"], content["label"])


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
