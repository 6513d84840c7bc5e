"""Corpora: one text per line, checked while they are read, streamed so that size does not matter."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import xxhash

from backends.errors import TrainingDataError
from backends.storage import file_checksum
from builder.construct.training.lines import numbered_lines, require_file

_WHAT = "corpus"
_MAX_LINE_BYTES = 16 << 20
_HELD_OUT_EVERY = 50
_MAX_HELD_OUT_TEXTS = 400
_LARGEST_HASH = 1 << 64


@dataclass(frozen=True)
class Corpus:
    """The texts of some files, less those held out to measure with (and every repetition of them)."""

    files: tuple[Path, ...]
    held_out: tuple[str, ...]
    num_texts: int

    def texts(self) -> Iterator[str]:
        reserved = set(self.held_out)
        return (text for text in corpus_texts(self.files) if text not in reserved)

    def batches(self, size: int) -> Iterator[list[str]]:
        texts = self.texts()
        while batch := list(islice(texts, size)):
            yield batch

    def sample(self, max_texts: int) -> list[str]:
        """Take `max_texts` texts at most, spread evenly over the corpus."""
        return list(islice(self.texts(), 0, None, max(1, -(-self.num_texts // max_texts))))


def whole_corpus(files: Sequence[Path]) -> Corpus:
    """All texts; reading them through also finds what is wrong with a corpus before any work is done on it."""
    return Corpus(tuple(files), (), sum(1 for _ in corpus_texts(files)))


def split_corpus(files: Sequence[Path], held_out: Path | None) -> Corpus:
    """A corpus whose held-out texts come from a file of their own, or else are a small part of it.

    The part goes by what the texts say: of a corpus that has grown, none of it was learnt from when it was smaller, so
    the next version of a domain is not measured on what the version before was trained on.
    """
    whole = whole_corpus(files)
    if held_out is None:
        reserved = _held_out(whole.texts())
    else:
        reserved = tuple(dict.fromkeys(islice(corpus_texts([held_out]), _MAX_HELD_OUT_TEXTS)))
    if held_out is not None and not reserved:
        raise TrainingDataError(f"{held_out} holds no text")
    unread = replace(whole, held_out=reserved)
    return replace(unread, num_texts=sum(1 for _ in unread.texts()))


def _held_out(texts: Iterable[str]) -> tuple[str, ...]:
    """Hold out one in fifty of the different texts, by small hashes; the smallest of many, at least one of few."""
    kept: dict[int, str] = {}
    largest_first: list[int] = []
    for text in texts:
        name = xxhash.xxh3_64_intdigest(text.encode())
        if name in kept:
            continue
        heapq.heappush(largest_first, -name)
        kept[name] = text
        if len(kept) > _MAX_HELD_OUT_TEXTS:
            del kept[-heapq.heappop(largest_first)]
    names = sorted(kept)
    few = [name for name in names if name < _LARGEST_HASH // _HELD_OUT_EVERY] or names[:1]
    return tuple(kept[name] for name in few)


def corpus_texts(files: Sequence[Path]) -> Iterator[str]:
    """Every non-empty line of the files; a line that is not UTF-8 text is an error that names it."""
    return (text for path in files for _, text in numbered_texts(path))


def numbered_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Read every non-empty line of a file, without blanks around it, and its number."""
    lines = ((number, line.strip()) for number, line in numbered_lines(path, _WHAT, _MAX_LINE_BYTES))
    return ((number, text) for number, text in lines if text)


def corpus_checksums(files: Sequence[Path]) -> list[str]:
    """Names the exact texts, so that an interrupted build does not go on with others."""
    for path in files:
        require_file(path, _WHAT)
    return [file_checksum(path) for path in files]
