"""What a row brings along of its words, where its task or its ladder needs it."""

from __future__ import annotations

from typing import NamedTuple

from backends.errors import InvalidArgumentError
from backends.registry.entries import HplmEntry
from backends.root.word_marks import WordMarks
from backends.wire import AUTO, WORDS, TextWords, Ticket, decode_marks, decode_words


class BroughtWords(NamedTuple):
    """The words of a text in which entities are looked for, or where those of one begin that may lose some."""

    words: TextWords | None = None
    marks: WordMarks | None = None


def brought_words(entry: HplmEntry, ticket: Ticket, row: bytes) -> BroughtWords:
    """Decode a row of WORDS; raises InvalidArgumentError where it is not of the ticket's tokens."""
    if entry.prunes_words:
        return BroughtWords(marks=decode_marks(row, ticket.num_tokens) if ticket.level == AUTO else None)
    if not row:
        return BroughtWords()
    decoded = decode_words(row)
    if not decoded.words.have_tokens_of(ticket.num_tokens):
        raise InvalidArgumentError(f"{WORDS} has words of other tokens than the {ticket.num_tokens} of its row")
    return BroughtWords(decoded)
