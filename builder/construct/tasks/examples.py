"""Labelled texts, as training files hold them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from backends.engine.entities import Span
from backends.root.tokenizer import Text


@dataclass(frozen=True)
class LabelledText:
    """A text, or a pair of them, with its class or its number."""

    text: str
    label: str | float
    text_pair: str | None = None


@dataclass(frozen=True)
class TaggedSentence:
    """Words with one BIO tag each; the text is the words with a blank between them."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def text_pair(self) -> None:
        return None

    def word_spans(self) -> list[tuple[int, int]]:
        """The begin and the end of each word in the text, in characters."""
        spans, start = [], 0
        for word in self.words:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return spans

    def entity_numbers(self) -> list[int | None]:
        """The entity that each word belongs to, counted from 1."""
        numbers = accumulate(tag.startswith("B-") for tag in self.tags)
        return [None if tag == "O" else number for tag, number in zip(self.tags, numbers, strict=True)]

    def entities(self) -> frozenset[Span]:
        """The entities that the tags mark, as spans of the text; the tags are known to follow BIO."""
        spans: list[Span] = []
        for (start, end), tag in zip(self.word_spans(), self.tags, strict=True):
            prefix, _, label = tag.partition("-")
            if prefix == "B":
                spans.append(Span(start, end, label))
            elif prefix == "I":
                spans[-1] = Span(spans[-1].start, end, label)
        return frozenset(spans)


def is_visible(word: str) -> bool:
    """Whether it has more than blanks, marks and control or format characters, of which a tokenizer makes nothing."""
    return any(unicodedata.category(character)[0] not in "CMZ" for character in word)


Example = LabelledText | TaggedSentence


def task_text(example: Example) -> Text:
    """Return the text in the form that a tokenizer takes."""
    return example.text if example.text_pair is None else (example.text, example.text_pair)


def majority_share(examples: Sequence[LabelledText]) -> float:
    """The accuracy of always answering the most frequent class."""
    counts = Counter(example.label for example in examples)
    return max(counts.values()) / len(examples)


def num_shared(examples: Sequence[Example], others: Sequence[Example]) -> int:
    """Count the `examples` whose text `others` have too, whatever its case, blanks and Unicode form."""
    known = {normalised(other) for other in others}
    return sum(normalised(example) in known for example in examples)


def normalised(example: Example) -> tuple[str, ...]:
    """A text, or both of a pair, as they are compared: case, blanks and Unicode form make no other text.

    Nor does how a sentence was cut into words: tokenizers cut "3-beta" and "isn't" in different ways.
    """
    segments = [example.text] if example.text_pair is None else [example.text, example.text_pair]
    blank = "" if isinstance(example, TaggedSentence) else " "
    return tuple(blank.join(unicodedata.normalize("NFKC", segment).casefold().split()) for segment in segments)
