"""Texts to ask about: lines of a file, or common words up to a requested length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError

_SPECIAL_TOKENS = 2
_VARIANTS = 16
_WORDS = (
    "the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but "
    "some what there we can out other were all your when up use word how said an each she which do their time if will "
    "way about many then them would write like so these her long make thing see him two has look more day could go "
    "come did my sound no most number who over know water than call first people may down side been now find any new "
    "work part take get place made live where after back little only round man year came show every good me give our"
).split()


@dataclass(frozen=True, eq=False)
class Drawn:
    """Texts for rows: indices into a table, and their lengths in tokens. Shape: [rows] each."""

    texts: tuple[str, ...]
    text_of: NDArray[np.int64]
    tokens: NDArray[np.int64]


class Texts(Protocol):
    def of_lengths(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> Drawn: ...


@dataclass(frozen=True)
class WordTexts:
    """Common English words, each one token of an English vocabulary; [CLS] and [SEP] count too."""

    def of_lengths(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> Drawn:
        lengths, length_of = np.unique(np.maximum(tokens, _SPECIAL_TOKENS + 1), return_inverse=True)
        texts = [_words(int(length) - _SPECIAL_TOKENS, rng) for length in lengths for _ in range(_VARIANTS)]
        text_of = length_of * _VARIANTS + rng.integers(_VARIANTS, size=len(tokens))
        return Drawn(tuple(texts), text_of.astype(np.int64), lengths[length_of])


@dataclass(frozen=True, eq=False)
class FileTexts:
    """Lines of a file. A request gets one of the lines nearest to its length; words count as tokens."""

    lines: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> FileTexts:
        try:
            lines = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        except OSError as error:
            raise WorkloadError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise WorkloadError(f"{path}: not UTF-8 text") from error
        if not lines:
            raise WorkloadError(f"{path}: no texts")
        return cls(tuple(sorted(lines, key=tokens_of)))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([tokens_of(line) for line in self.lines], np.int64)

    def of_lengths(self, tokens: NDArray[np.int64], rng: np.random.Generator) -> Drawn:
        own = self.lengths
        above = np.minimum(np.searchsorted(own, tokens), len(own) - 1)
        below = np.maximum(above - 1, 0)
        nearest = np.where(tokens - own[below] < own[above] - tokens, own[below], own[above])
        first, last = np.searchsorted(own, nearest), np.searchsorted(own, nearest, side="right")
        text_of = rng.integers(first, last).astype(np.int64)
        return Drawn(self.lines, text_of, own[text_of])


def segments(text: str) -> tuple[str, str]:
    """Cut a text for an hPLM of pairs: at its TAB if it has one, otherwise in the middle."""
    first, separator, second = text.partition("\t")
    if separator and first.strip() and second.strip():
        return first, second.replace("\t", " ")
    words: Sequence[str] = text.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:] or words[:1])


def _words(count: int, rng: np.random.Generator) -> str:
    return " ".join(_WORDS[index] for index in rng.integers(len(_WORDS), size=count))


def tokens_of(line: str) -> int:
    """Count a line's words and the two special tokens."""
    return len(line.split()) + _SPECIAL_TOKENS
