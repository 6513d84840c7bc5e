"""Texts with the labels that are right, of each hPLM its own: `{"text": …, "label": …}` per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workload.errors import WorkloadError

_SEPARATOR = "\t"
"""Stands between the two texts of a pair, which `loadtest.texts.segments` cuts there."""


class LabelledText(NamedTuple):
    text: str
    label: str


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of some hPLMs; the others get texts without labels."""

    of_hplm: Mapping[str, Sequence[LabelledText]]

    @classmethod
    def read(cls, files: Mapping[str, Path]) -> LabelledTexts:
        return cls({hplm: _read(path) for hplm, path in files.items()})

    def draw(self, hplm: str, count: int, rng: np.random.Generator) -> list[LabelledText]:
        """Draw an hPLM's texts in random order, each as often as the others."""
        texts = self.of_hplm[hplm]
        rounds = -(-count // len(texts))
        order = [index for _ in range(rounds) for index in rng.permutation(len(texts)).tolist()]
        return [texts[index] for index in order[:count]]


def parse_labelled(texts: Sequence[str]) -> dict[str, Path]:
    """Read ID=FILE of each option."""
    files: dict[str, Path] = {}
    for text in texts:
        hplm, equals, path = text.partition("=")
        if not (hplm and equals and path):
            raise WorkloadError(f"--labelled: {text!r} is not of the form ID=FILE, as acme/returns=test.jsonl")
        if hplm in files:
            raise WorkloadError(f"--labelled: {hplm} has two files")
        files[hplm] = Path(path)
    return files


def _read(path: Path) -> tuple[LabelledText, ...]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a JSON string may hold other ends of lines
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not UTF-8 text") from error
    found = tuple(_labelled(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip())
    if not found:
        raise WorkloadError(f"{path}: no texts")
    return found


def _labelled(line: str, where: str) -> LabelledText:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{where}: not JSON") from error
    fields = content if isinstance(content, dict) else {}
    text, pair, label = fields.get("text"), fields.get("text_pair"), fields.get("label")
    if not isinstance(text, str) or not text.strip() or not isinstance(label, str) or not label:
        raise WorkloadError(f'{where}: not {{"text": …, "label": …}} with a label of a classification')
    if pair is not None and not isinstance(pair, str):
        raise WorkloadError(f"{where}: 'text_pair' is no text")
    first = text.replace(_SEPARATOR, " ")
    return LabelledText(first if pair is None else f"{first}{_SEPARATOR}{pair}", label)
