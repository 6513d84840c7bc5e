"""The rows of a call → hidden states: looked up domain by domain, completed together, aggregated domain by domain.

A damaged table costs only the rows that read it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from backends.errors import HplmError, presentable
from backends.lower.domains import OpenDomain, OpenDomains
from backends.lower.model import EncodedTexts, PendingTexts
from backends.plot.askers import Askers, asker_number
from backends.registry.entries import DomainEntry, HplmEntry
from backends.root.tokenizer import MOST_CHARACTERS, Text
from backends.root.word_marks import WordMarks
from backends.root.words import RowWords
from backends.scheduling.tenants import tenant_of
from backends.wire import AUTO, Float16Array, TextWords, Ticket, encode_marks, encode_words

LOGGER = logging.getLogger(__name__)
_CHARACTER_US = 0.2
_CHARACTERS_FREE = 4096
"""Of a text so long, tokens are charged and nothing else."""


@dataclass(frozen=True)
class Row:
    """A row of a request that may be served."""

    entry: HplmEntry
    text: Text
    deadline_us: int | None
    level: str = AUTO
    is_cut: bool = False
    """Whether its text was cut before it was read."""
    is_canary: bool = False

    @property
    def num_characters(self) -> int:
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))

    @property
    def reading_us(self) -> float:
        """What reading a long text takes; its tenant is charged, for it may come to no more tokens than a word."""
        return _CHARACTER_US * max(0, min(self.num_characters, MOST_CHARACTERS) - _CHARACTERS_FREE)

    @property
    def may_lose_words(self) -> bool:
        return self.level == AUTO and self.entry.prunes_words


@dataclass(frozen=True)
class EncodedRow:
    hidden: Float16Array
    ticket: Ticket
    words: TextWords | None
    marks: WordMarks | None = None

    @property
    def encoded_words(self) -> bytes:
        """What the tensor WORDS says of the row."""
        return encode_words(self.words) if self.marks is None else encode_marks(self.marks)


@dataclass(frozen=True)
class _Group:
    """Rows of one domain that are looked up together; `indices` are their places in the call."""

    indices: Sequence[int]
    rows: Sequence[Row]
    domain: OpenDomain
    texts: PendingTexts

    @property
    def askers(self) -> Askers:
        return np.array([asker_number(tenant_of(row.entry.id)) for row in self.rows], np.uint32)

    def finish(self) -> EncodedTexts:
        return self.domain.lower_model.finish(self.texts)

    def word_marks(self) -> Sequence[WordMarks | None]:
        """Return where words begin, of those rows that may lose some."""
        may_lose = [row.may_lose_words for row in self.rows]
        if not any(may_lose):
            return [None] * len(self.rows)
        marks = self.domain.lower_model.word_marks(self.texts)
        return [each if may else None for each, may in zip(marks, may_lose, strict=True)]


def encode_rows(domains: OpenDomains, rows: Sequence[Row]) -> list[EncodedRow | HplmError]:
    """Encode all rows, each to its hidden states or its error, and note how long that took."""
    started_s = time.perf_counter()
    encoded = _encode_rows(domains, rows)
    domains.call_times.note(1e6 * (time.perf_counter() - started_s))
    return encoded


def _encode_rows(domains: OpenDomains, rows: Sequence[Row]) -> list[EncodedRow | HplmError]:
    by_domain: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        by_domain.setdefault(row.entry.domain.folders, []).append(index)
    encoded: dict[int, EncodedRow | HplmError] = {}
    groups: list[_Group] = []
    for indices in by_domain.values():
        for begun in _begin(domains, indices, [rows[index] for index in indices]):
            if isinstance(begun, _Group):
                groups.append(begun)
            else:
                encoded |= begun
    domains.fill([(group.domain, group.texts, group.askers) for group in groups])
    for group in groups:
        encoded |= _finish(domains, group)
    return [encoded[index] for index in range(len(rows))]


def _begin(
    domains: OpenDomains, indices: Sequence[int], rows: Sequence[Row]
) -> Iterator[_Group | dict[int, EncodedRow | HplmError]]:
    """Look rows up together; if that fails, one by one, so that only rows that read damaged data fail."""
    entry = rows[0].entry.domain
    try:
        domain = domains.opened(entry)
    except Exception as error:
        yield dict.fromkeys(indices, damaged(entry, error))
        return
    try:
        with_words = [row.entry.task == "ner" for row in rows]
        yield _Group(indices, rows, domain, domain.lower_model.begin([row.text for row in rows], with_words))
    except Exception as error:
        if len(rows) == 1:
            yield {indices[0]: damaged(entry, error)}
            return
        for index, row in zip(indices, rows, strict=True):
            yield from _begin(domains, [index], [row])


def _finish(domains: OpenDomains, group: _Group) -> dict[int, EncodedRow | HplmError]:
    """Aggregate rows together; if that fails, look up and aggregate each one anew."""
    try:
        encoded, marks = group.finish(), group.word_marks()
    except Exception as error:
        if len(group.rows) == 1:
            return {group.indices[0]: damaged(group.rows[0].entry.domain, error)}
        finished: dict[int, EncodedRow | HplmError] = {}
        for index, row in zip(group.indices, group.rows, strict=True):
            for begun in _begin(domains, [index], [row]):
                finished |= _finish(domains, begun) if isinstance(begun, _Group) else begun
        return finished
    domains.note(group.rows[0].entry.domain, encoded.statistics.counts)
    return dict(zip(group.indices, _encoded(group.rows, encoded, marks), strict=True))


def _encoded(rows: Sequence[Row], encoded: EncodedTexts, marks: Sequence[WordMarks | None]) -> Iterator[EncodedRow]:
    columns = zip(
        rows,
        encoded.rows,
        encoded.truncated.tolist(),
        encoded.exact.tolist(),
        encoded.computing_us.tolist(),
        encoded.words,
        marks,
        encoded.middles,
        strict=True,
    )
    for row, hidden, cut, exact, computing_us, words, of_row, middle in columns:
        charged_us = round(computing_us + row.reading_us)
        is_cut = cut or row.is_cut
        facts = (middle, exact, charged_us, row.level, row.is_canary)
        ticket = Ticket(row.entry.key, len(hidden), is_cut, row.deadline_us, *facts)
        yield EncodedRow(hidden, ticket, _text_words(row, words), of_row)


def _text_words(row: Row, words: RowWords | None) -> TextWords | None:
    return TextWords(row.text, words) if words is not None and isinstance(row.text, str) else None


def damaged(domain: DomainEntry, error: Exception) -> HplmError:
    """Log why the rows of a domain fail; returns it as clients may see it."""
    LOGGER.error("domain %s: %s", domain.label, error)
    return presentable(error, "the table of this hPLM is")
