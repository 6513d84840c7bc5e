"""Turns documentation markup into plain lines of English, and compares lines by their words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

ROLE = re.compile(r":[a-z:+-]+:`[~!.]?([^`<]*?)\s*(?:<[^`>]*>)?`")
LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_*")
DIRECTIVE = re.compile(r"^\s*\.\.\s.*$", re.MULTILINE)
RULE = re.compile(r"[-=~^*#_+|/\\.]{3,}")
PRINTF = re.compile(r"%(?:\(\w+\))?[-#0 +]*[\d.*]*[sdrfgixc]|\{[\w.!:\[\]]*\}")
SPACE = re.compile(r"\s+")
WORD = re.compile(r"[^\W\d_]+")
SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+")
SECTION = re.compile(
    r"^\s*(?:args?|arguments|parameters|params|keyword arg\w*|inputs?|shape|attributes|returns?|yields|raises"
    r"|examples?|usage|notes?|see also|references|warnings?)\s*:*\s*$",
    re.IGNORECASE | re.MULTILINE,
)
SHINGLE_WORDS = 3


def plain(text: str) -> str:
    """One line without markup: roles and quotes give way to the words inside, placeholders become an ellipsis."""
    text = DIRECTIVE.sub(" ", text)
    text = LINK.sub(r"\1", ROLE.sub(r"\1", text))
    text = PRINTF.sub("…", text.replace("`", "").replace("**", ""))
    return SPACE.sub(" ", RULE.sub(" ", text).replace("::", ":")).strip()


def paragraphs(text: str) -> list[str]:
    """Plain paragraphs; interactive examples and lines of punctuation are left out."""
    blocks = re.split(r"\n\s*\n", text)
    return [line for block in blocks if ">>>" not in block and (line := plain(block)) and WORD.search(line)]


def passages(text: str, longest_words: int) -> Iterator[str]:
    """Consecutive paragraphs joined, or cut between sentences where possible, into lines of at most `longest_words`."""
    line: list[str] = []
    for sentence in (s for paragraph in paragraphs(text) for s in SENTENCE_END.split(paragraph)):
        words = sentence.split()
        if line and len(line) + len(words) > longest_words:
            yield " ".join(line)
            line = []
        while len(words) > longest_words:
            yield " ".join(words[:longest_words])
            words = words[longest_words:]
        line += words
    if line:
        yield " ".join(line)


def lead(text: str, longest_words: int) -> str:
    """The words that open a docstring, up to its first section such as `Parameters` or `Returns`."""
    opening = SECTION.split(text, maxsplit=1)[0]
    return " ".join(" ".join(paragraphs(opening)).split()[:longest_words])


def is_english(text: str) -> bool:
    """Whether most of the characters belong to words: neither code, nor a table, nor a list of numbers."""
    letters = sum(len(word) for word in WORD.findall(text))
    return letters >= 0.7 * len(text)


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def shingles(text: str) -> set[tuple[str, ...]]:
    """All runs of three words, whatever their case, digits and punctuation."""
    found = words(text)
    return {tuple(found[i : i + SHINGLE_WORDS]) for i in range(max(1, len(found) - SHINGLE_WORDS + 1))}


class Novelty:
    """Tells texts that mostly repeat known ones; accepting only new ones leaves no two near-duplicates."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.seen = {shingle for text in known for shingle in shingles(text)}

    def is_new(self, text: str) -> bool:
        own = shingles(text)
        return 2 * len(own & self.seen) < len(own)

    def accept(self, text: str) -> bool:
        is_new = self.is_new(text)
        if is_new:
            self.seen |= shingles(text)
        return is_new


class VerbatimFilter:
    """Finds the lines that contain one of `texts` word for word; linear in the length of a line."""

    def __init__(self, texts: Collection[str]) -> None:
        self.texts_at: dict[tuple[str, ...], list[list[str]]] = {}
        for text in texts:
            found = words(text)
            self.texts_at.setdefault(tuple(found[:SHINGLE_WORDS]), []).append(found)

    def matches(self, line: str) -> bool:
        found = words(line)
        return any(
            found[i : i + len(text)] == text
            for i in range(len(found))
            for text in self.texts_at.get(tuple(found[i : i + SHINGLE_WORDS]), ())
        )
