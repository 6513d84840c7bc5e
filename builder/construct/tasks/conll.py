"""Training files of NER: `token<TAB>tag` per line, a blank line between sentences, tags in strict BIO."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.tasks.examples import TaggedSentence, is_visible
from builder.construct.training.lines import numbered_lines

OUTSIDE = "O"
_TAG = re.compile(r"O|[BI]-\S(.*\S)?")


def read_sentences(path: Path) -> list[TaggedSentence]:
    """Read all sentences; a tag that breaks BIO is an error with its line and both tags."""
    return list(each_sentence(path))


def each_sentence(path: Path) -> Iterator[TaggedSentence]:
    """Yield what `read_sentences` reads, keeping one sentence at a time."""
    words: list[str] = []
    tags: list[str] = []
    has_sentence = has_visible = False
    for number, line in chain(numbered_lines(path), [(0, "")]):  # a blank line ends the last sentence too
        if line.strip():
            word, tag = _split(line, f"{path}:{number}")
            _require_bio(tags[-1] if tags else None, tag, f"{path}:{number}")
            words.append(word)
            tags.append(tag)
        elif words:
            has_sentence, has_visible = True, has_visible or any(map(is_visible, words))
            yield TaggedSentence(tuple(words), tuple(tags))
            words.clear()
            tags.clear()
    if not has_sentence:
        raise TrainingDataError(f"{path} holds no examples")
    if not has_visible:
        raise TrainingDataError(f"{path} holds no word that can be seen")


def is_conll(path: Path) -> bool:
    """Whether the first line that is not blank looks like `token<TAB>tag`."""
    first = next((line for _, line in numbered_lines(path) if line.strip()), "")
    word, _, tag = first.partition("\t")  # cheaper than one pattern, which would try each beginning of a long line
    return bool(word.strip()) and _TAG.fullmatch(tag) is not None


def _split(line: str, where: str) -> tuple[str, str]:
    word, *rest = line.split("\t")
    if len(rest) != 1 or not word.strip():
        raise TrainingDataError(f"{where}: not token<TAB>tag")
    if _TAG.fullmatch(rest[0]) is None:
        raise TrainingDataError(f"{where}: tag {rest[0][:80]!r} is none of O, B-… and I-…")
    return word, rest[0]


def _require_bio(previous: str | None, tag: str, where: str) -> None:
    if not tag.startswith("I-") or previous in (tag, f"B-{tag[2:]}"):
        return
    after = "at the beginning of a sentence" if previous is None else f"after {previous}"
    raise TrainingDataError(f"{where}: {tag} {after} breaks BIO; an entity begins with B-{tag[2:]}")
