"""Training files of NER: `token<TAB>tag` per line, a blank line between sentences, tags in strict BIO."""

from __future__ import annotations

import re
from pathlib import Path

from backends.errors import TrainingDataError
from builder.construct.tasks.examples import TaggedSentence, is_visible
from builder.construct.tasks.lines import numbered_lines

OUTSIDE = "O"
_TAG = re.compile(r"O|[BI]-\S(.*\S)?")


def read_sentences(path: Path) -> list[TaggedSentence]:
    """All sentences; a tag that breaks BIO is an error with its line and both tags."""
    sentences: list[TaggedSentence] = []
    words: list[str] = []
    tags: list[str] = []

    def close() -> None:
        if words:
            sentences.append(TaggedSentence(tuple(words), tuple(tags)))
            words.clear()
            tags.clear()

    for number, line in numbered_lines(path):
        if not line.strip():
            close()
            continue
        word, tag = _split(line, f"{path}:{number}")
        _require_bio(tags[-1] if tags else None, tag, f"{path}:{number}")
        words.append(word)
        tags.append(tag)
    close()
    if not sentences:
        raise TrainingDataError(f"{path} holds no examples")
    if not any(is_visible(word) for sentence in sentences for word in sentence.words):
        raise TrainingDataError(f"{path} holds no word that can be seen")
    return sentences


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
