"""Texts without labels, as examples: a teacher's answers to them can be learnt."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.tasks.conll import OUTSIDE, is_conll
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence, normalised
from builder.construct.training.corpus import numbered_texts

_WORD = re.compile(r"\w+|[^\w\s]")
_SEGMENT_SEPARATOR = "\t"
_SEED = 41


def unlabelled_examples(path: Path, like: Example, known: Sequence[Example], most: int) -> list[Example]:
    """The distinct texts of a file, of a kind with `like`; where there are more than `most`, so many drawn from all.

    None is among `known`. Their labels say nothing.
    """
    _require_plain_texts(path)
    seen, num_new, rng = {hash(normalised(example)) for example in known}, 0, random.Random(_SEED)
    kept: list[tuple[int, Example]] = []
    for number, text in numbered_texts(path):
        example = _example(text, like, f"{path}:{number}")
        name = hash(normalised(example))
        if name in seen:
            continue
        seen.add(name)
        num_new += 1
        # However many there are, no more than these are held, and each is as likely to be among them.
        if len(kept) < most:
            kept.append((number, example))
        elif (index := rng.randrange(num_new)) < most:
            kept[index] = number, example
    if not kept:
        raise TrainingDataError(f"{path} holds no text that the task's own files lack")
    return [example for _, example in sorted(kept, key=itemgetter(0))]


def _require_plain_texts(path: Path) -> None:
    _, first = next(numbered_texts(path), (0, ""))
    if not first:
        raise TrainingDataError(f"{path} holds no text")
    if is_conll(path):
        raise TrainingDataError(
            f"{path} looks like a file of token<TAB>tag lines; without labels it is one text per line"
        )
    if _is_object(first):
        raise TrainingDataError(f"{path} looks like JSONL; without labels it is one text per line, and nothing else")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _example(text: str, like: Example, where: str) -> Example:
    """Read a text as a server does: a TAB ends the first segment of a pair, and is a blank elsewhere."""
    if isinstance(like, TaggedSentence):
        words = tuple(_WORD.findall(text))
        return TaggedSentence(words, (OUTSIDE,) * len(words))
    if like.text_pair is None:
        return LabelledText(text.replace(_SEGMENT_SEPARATOR, " "), like.label)
    first, _, second = text.partition(_SEGMENT_SEPARATOR)
    if not second.strip():
        raise TrainingDataError(f"{where}: one text; a task of pairs needs two in each line, with a TAB between them")
    return replace(like, text=first, text_pair=second.replace(_SEGMENT_SEPARATOR, " "))
