"""Entities of a text: the most probable sequence of tags that follows BIO, and the spans that it marks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.root.words import RowWords, letter_end

Tags = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """`text[start:end]` is a `label`."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class ScoredSpan:
    """A found entity; the score is the mean probability of its words' tags."""

    span: Span
    score: float


@dataclass(frozen=True)
class _Bio:
    """Tags that may come first, and pairs of tags that may follow each other.

    Shape:
        first: `[C]`; follows: `[C, C]`, from row to column.
    """

    first: npt.NDArray[np.bool_]
    follows: npt.NDArray[np.bool_]

    def allows(self, tags: Tags) -> bool:
        return bool(self.first[tags[:1]].all() and self.follows[tags[:-1], tags[1:]].all())


@lru_cache(maxsize=1024)
def _bio(labels: tuple[str, ...]) -> _Bio:
    inside = np.array([label.startswith("I-") for label in labels])
    kinds = np.array([label[2:] for label in labels])
    outside = np.array([label[:2] not in ("B-", "I-") for label in labels])
    goes_on = (kinds[:, None] == kinds) & ~outside[:, None]
    return _Bio(~inside, ~inside | goes_on)


def find_entities(word_logits: Tensor, words: RowWords, text: str, labels: tuple[str, ...]) -> list[ScoredSpan]:
    """Find the entities in a row's word logits `[W, C]`, in the order of the text."""
    log_probabilities = _log_probabilities(word_logits)
    tags = best_tags(log_probabilities, labels)
    scores = np.exp(log_probabilities[np.arange(len(tags)), tags])
    groups: list[list[int]] = []
    for word, tag in enumerate(tags.tolist()):
        if labels[tag].startswith("B-"):
            groups.append([word])
        elif labels[tag].startswith("I-"):
            groups[-1].append(word)
    return [
        ScoredSpan(words_span(text, words, group, labels[tags[group[0]]][2:]), float(scores[group].mean()))
        for group in groups
    ]


def served_tags(word_logits: Tensor, labels: tuple[str, ...]) -> Tags:
    """Return the tags of a row's words `[W, C]` by which its entities are found: `[W]`."""
    return best_tags(_log_probabilities(word_logits), labels)


def _log_probabilities(word_logits: Tensor) -> Scores:
    found: Scores = torch.log_softmax(word_logits.float(), dim=-1).numpy()
    return found


def best_tags(log_probabilities: Scores, labels: tuple[str, ...]) -> Tags:
    """Return the most probable sequence of tags in which every I-X follows B-X or I-X.

    Shape:
        `[W, C]` → `[W]`.
    """
    bio = _bio(labels)
    greedy: Tags = log_probabilities.argmax(axis=1)
    return greedy if bio.allows(greedy) else _viterbi(log_probabilities, bio)


def _viterbi(log_probabilities: Scores, bio: _Bio) -> Tags:
    num_words = len(log_probabilities)
    scores = np.where(bio.first, log_probabilities[0], -np.inf)
    came_from = np.zeros(log_probabilities.shape, np.int64)
    for word in range(1, num_words):
        paths = np.where(bio.follows, scores[:, None], -np.inf)  # (from, to)
        came_from[word] = paths.argmax(axis=0)
        scores = paths.max(axis=0) + log_probabilities[word]
    tags = np.empty(num_words, np.int64)
    tags[-1] = scores.argmax()
    for word in range(num_words - 1, 0, -1):
        tags[word - 1] = came_from[word, tags[word]]
    return tags


def words_span(text: str, words: RowWords, group: list[int], label: str) -> Span:
    """Return the span of a group of consecutive words in their text."""
    start, end = int(words.starts[group[0]]), int(words.ends[group[-1]])
    while start < end and text[start].isspace():  # some tokenizers count the blank before a word as its part
        start += 1
    return Span(start, letter_end(text, end), label)
