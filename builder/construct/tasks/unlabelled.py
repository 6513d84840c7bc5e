"""Texts without labels, as examples: a teacher's answers to them can be learnt."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.tasks.conll import OUTSIDE, is_conll
from builder.construct.tasks.examples import Example, LabelledText, TaggedSentence
from builder.construct.tasks.trained_texts import TrainedTexts, hashes_of
from builder.construct.training.corpus import numbered_texts

_WORD = re.compile(r"\w+|[^\w\s]")
_SEGMENT_SEPARATOR = "\t"
_SEED = 41
_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Drawn:
    """Texts drawn from a file, in its order; and the number of different texts that were left out as known."""

    examples: list[Example]
    num_known: int


def unlabelled_examples(path: Path, like: Example, known: Sequence[Example], most: int) -> list[Example]:
    """Draw from the texts that are not among `known`, as `draw_unlabelled` does.

    Raises:
        TrainingDataError: There is none, or the file holds no plain texts.
    """
    drawn = draw_unlabelled(path, like, TrainedTexts.of(known), most)
    if not drawn.examples:
        raise TrainingDataError(f"{path} holds no text that the task's own files lack")
    return drawn.examples


def draw_unlabelled(path: Path, like: Example, known: TrainedTexts, most: int) -> Drawn:
    """Draw `most` of the distinct texts of a file that are not known, or all where there are no more.

    They are of a kind with `like`; their labels say nothing.
    """
    _require_plain_texts(path)
    seen, num_known, num_new, rng = set[int](), 0, 0, random.Random(_SEED)
    kept: list[tuple[int, Example]] = []
    for block in _blocks((number, _example(text, like, f"{path}:{number}")) for number, text in numbered_texts(path)):
        examples = [example for _, example in block]
        hashes = hashes_of(examples).tolist()
        for row, name, is_known in zip(block, hashes, known.are_among(examples).tolist(), strict=True):
            if name in seen:
                continue
            seen.add(name)
            if is_known:
                num_known += 1
                continue
            num_new += 1
            # However many there are, no more than these are held, and each is as likely to be among them.
            if len(kept) < most:
                kept.append(row)
            elif (index := rng.randrange(num_new)) < most:
                kept[index] = row
    return Drawn([example for _, example in sorted(kept, key=itemgetter(0))], num_known)


def _blocks(rows: Iterator[tuple[int, Example]]) -> Iterator[list[tuple[int, Example]]]:
    while block := list(islice(rows, _TEXTS_AT_ONCE)):
        yield block


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
