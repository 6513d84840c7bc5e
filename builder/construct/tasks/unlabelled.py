"""Texts without labels, as examples: what a teacher says of them can be learnt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.corpus import whole_corpus
from builder.construct.tasks.conll import OUTSIDE
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence, normalised

_WORD = re.compile(r"\w+|[^\w\s]")
_HALVES_APART = "\t"


def unlabelled_examples(path: Path, like: Example, known: Sequence[Example], most: int) -> list[Example]:
    """The texts of a file, of a kind with `like`, at most `most` of them and spread evenly over the file.

    None is among `known`. Their labels say nothing.
    """
    seen = {normalised(example) for example in known}
    found: list[Example] = []
    for text in whole_corpus([path]).sample(most):
        example = _example(text, like, path)
        if normalised(example) not in seen:
            seen.add(normalised(example))
            found.append(example)
    if not found:
        raise TrainingDataError(f"{path} holds no text that the task's own files lack")
    return found


def _example(text: str, like: Example, path: Path) -> Example:
    """As a server reads it: a TAB ends the first half of a pair, and is a blank elsewhere."""
    if isinstance(like, TaggedSentence):
        words = tuple(_WORD.findall(text))
        return TaggedSentence(words, (OUTSIDE,) * len(words))
    if like.text_pair is None:
        return LabelledText(text.replace(_HALVES_APART, " "), like.label)
    first, tab, second = text.partition(_HALVES_APART)
    if not tab:
        raise TrainingDataError(f"{path} has {text[:60]!r}; a task of pairs needs a TAB between two texts in each line")
    return replace(like, text=first, text_pair=second.replace(_HALVES_APART, " "))
