"""Training files of classification and regression: one JSON object per line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from backends.errors import TrainingDataError
from backends.wire import PAIR_SEPARATOR
from builder.construct.tasks.examples import LabelledText
from builder.construct.training.lines import numbered_lines

_LARGEST_VALUE = 1e30
ReadLabel = Callable[[object, str], str | float]


def read_classes(path: Path) -> list[LabelledText]:
    """Read `{"text": …, "label": "…"}` per line, with `"text_pair"` in every line or in none."""
    return list(each_class(path))


def read_values(path: Path) -> list[LabelledText]:
    """Read as `read_classes` does, but each label is a number."""
    return list(each_value(path))


def each_class(path: Path) -> Iterator[LabelledText]:
    """Yield what `read_classes` reads, keeping one example at a time."""
    return _each(path, _class)


def each_value(path: Path) -> Iterator[LabelledText]:
    """Yield what `read_values` reads, keeping one example at a time."""
    return _each(path, _value)


def _each(path: Path, read_label: ReadLabel) -> Iterator[LabelledText]:
    are_pairs: bool | None = None
    first_line = 0
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        example = _example(line, f"{path}:{number}", read_label)
        is_pair = example.text_pair is not None
        if are_pairs is None:
            are_pairs, first_line = is_pair, number
        if is_pair != are_pairs:
            has, first = ("has no", "has one") if are_pairs else ("has a", "has none")
            raise TrainingDataError(f"{path}:{number}: {has} 'text_pair', but line {first_line} {first}")
        yield example
    if are_pairs is None:
        raise TrainingDataError(f"{path} holds no examples")


def _example(line: str, where: str, read_label: ReadLabel) -> LabelledText:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TrainingDataError(
            f'{where}: not JSON: {error}; a line is {{"text": …, "label": …}}, or token<TAB>tag for the task ner'
        ) from error
    if not isinstance(content, dict):
        raise TrainingDataError(f'{where}: not an object {{"text": …, "label": …}}')
    text, label = _text(content, "text", where), read_label(content.get("label"), where)
    if content.get("text_pair") is None:
        return LabelledText(text, label)
    # A TAB separates the segments of a pair in a request, so no segment has one there.
    text_pair = _text(content, "text_pair", where)
    return LabelledText(text.replace(PAIR_SEPARATOR, " "), label, text_pair.replace(PAIR_SEPARATOR, " "))


def _text(content: dict[str, Any], name: str, where: str) -> str:
    text = content.get(name)
    if not isinstance(text, str) or not text.strip():
        raise TrainingDataError(f"{where}: {name!r} is missing, empty or not a string")
    return _unicode(text, name, where)


def _class(label: object, where: str) -> str:
    if isinstance(label, int | float) and not isinstance(label, bool):
        raise TrainingDataError(
            f"{where}: 'label' is the number {label}; a class is a string, and numbers are for --task regression"
        )
    if not isinstance(label, str) or not label.strip():
        raise TrainingDataError(f"{where}: 'label' is missing, empty or not a string")
    return _unicode(label, "label", where)


def _value(label: object, where: str) -> float:
    if isinstance(label, bool) or not isinstance(label, int | float):
        raise TrainingDataError(f"{where}: 'label' must be a number for regression, not {json.dumps(label)[:80]}")
    if abs(label) > _LARGEST_VALUE or math.isnan(label):  # in this order: no float holds the largest whole numbers
        raise TrainingDataError(f"{where}: 'label' is {str(label)[:80]}, which is no number that can be learnt")
    return float(label)


def _unicode(text: str, name: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TrainingDataError(f"{where}: {name!r} holds a lone surrogate, which is not a character") from error
    return text
