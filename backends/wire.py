"""The wire contract between the client, `hplm_lower` and `hplm_upper`: tensor names, tickets, hidden rows, words.

The tensor WORDS says of texts in which entities are looked for what their words are, and of texts that may lose words
on their way where these begin; of others it is empty.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from backends.clock import now_us
from backends.errors import InvalidArgumentError, shown
from backends.root.word_marks import CONTINUES_WORD, WordMarks
from backends.root.words import Int32, RowWords, letter_end
from backends.seal import OWN_SEAL, SEAL_BYTES, Seal
from backends.stack_key import FULL, STUDENTS
from backends.student_levels import MOST_STUDENTS, STUDENT_LEVELS, student_level

MODEL, TEXT, HIDDEN, TICKET, WORDS, RESULT = "MODEL", "TEXT", "HIDDEN", "TICKET", "WORDS", "RESULT"
PAIR_SEPARATOR = "\t"
REQUEST_PARAMETERS = ("deadline_ms", "tenant_token", "level")
AUTO, EARLY = "auto", "early"
LEVELS = (AUTO, FULL, EARLY, *STUDENT_LEVELS)
"""What a request may ask for; a ticket names it by its index here, so new ones go to the end."""
_SHOWN_LEVELS = f"{AUTO}, {FULL}, {EARLY}, {STUDENTS}, {student_level(1)} … {student_level(MOST_STUDENTS)}"
TICKET_VERSION = 7
"""Counts up with every change of `TICKET_COLUMNS`; 1 was the tensor of six columns that named no version."""
TICKET_COLUMNS = (
    "version",
    "hplm_key",
    "num_tokens",
    "truncated",
    "deadline_us",
    "middle",
    "exact",
    "computing_us",
    "level",
    "canary",
    "signed_us",
    "serial",
    "seal_low",
    "seal_high",
)
"""The columns of the tensor `TICKET`, in order; `batch_plan.h` of the deadline batcher declares the same ones.

The seal is of all columns before it. No two tickets of a server have the same `serial`.
"""
_SEALED = struct.Struct("=12q")
_TICKET_BYTES = _SEALED.size + SEAL_BYTES
_serials = count(secrets.randbits(62))
_NO_DEADLINE = 0
MAX_DEADLINE_MS = 24 * 3600 * 1000
_INT32 = struct.Struct("=i")

UInt8Array = npt.NDArray[np.uint8]
Float16Array = npt.NDArray[np.float16]
Rows = npt.NDArray[np.floating[Any]]
"""Hidden rows: of 16 bits from `hplm_lower`, of 32 from another stage of the upper layers."""
_Number = TypeVar("_Number", bound=np.floating[Any])
Int64Array = npt.NDArray[np.int64]


class Ticket(NamedTuple):
    """The facts about a row that `hplm_upper` needs.

    `hplm_key` names the hPLM version that the row started with; `deadline_us` is on the machine's monotonic clock;
    `middle` is the first token of a pair's second segment. `exact` is false where a shorter fragment stands in for one
    that no table holds; `computing_us` is the processor time that computing the row's fragments took. `level` is one
    of `LEVELS`. `is_canary`: the server's own watchdog asks, and no tenant is charged.
    """

    hplm_key: int
    num_tokens: int
    truncated: bool
    deadline_us: int | None
    middle: int | None = None
    exact: bool = True
    computing_us: int = 0
    level: str = AUTO
    is_canary: bool = False


def encode_tickets(tickets: Sequence[Ticket], seal: Seal = OWN_SEAL) -> Int64Array:
    """Encode tickets as rows of `TICKET_COLUMNS`, sealed now.

    Shape:
        `[B, len(TICKET_COLUMNS)]`.
    """
    rows, signed_us = bytearray(), now_us()
    for ticket in tickets:
        sealed = _sealed_columns(ticket, signed_us)
        rows += sealed
        rows += seal.of(sealed)
    return np.frombuffer(rows, np.int64).reshape(len(tickets), len(TICKET_COLUMNS))


def _sealed_columns(ticket: Ticket, signed_us: int) -> bytes:
    """A single text is a pair whose first segment is all of it."""
    return _SEALED.pack(
        TICKET_VERSION,
        ticket.hplm_key,
        ticket.num_tokens,
        ticket.truncated,
        ticket.deadline_us or _NO_DEADLINE,
        ticket.middle or ticket.num_tokens,
        ticket.exact,
        ticket.computing_us,
        LEVELS.index(ticket.level),
        ticket.is_canary,
        signed_us,
        next(_serials),
    )


class SealedTicket(NamedTuple):
    """A ticket, when it was sealed, and its number."""

    ticket: Ticket
    signed_us: int
    serial: int


def decode_tickets(rows: Int64Array, seal: Seal = OWN_SEAL) -> list[SealedTicket]:
    """Decode what `encode_tickets` made with the same seal.

    Raises:
        InvalidArgumentError: A row has another shape or version, or was made or changed elsewhere.
    """
    if rows.ndim != 2 or rows.shape[1] != len(TICKET_COLUMNS) or rows.dtype != np.int64:
        raise InvalidArgumentError(
            f"{TICKET} is of {rows.dtype} and shape {list(rows.shape)}, not of int64 and [batch, {len(TICKET_COLUMNS)}]"
        )
    content = rows.tobytes()
    return [_unsealed(content[start : start + _TICKET_BYTES], seal) for start in range(0, len(content), _TICKET_BYTES)]


def _unsealed(row: bytes, seal: Seal) -> SealedTicket:
    sealed = row[: _SEALED.size]
    version, key, num_tokens, truncated, deadline, middle, exact, computing_us, level, is_canary, signed_us, serial = (
        _SEALED.unpack(sealed)
    )
    if version != TICKET_VERSION:
        raise InvalidArgumentError(f"{TICKET} has version {version}; this release reads version {TICKET_VERSION}")
    if not seal.is_of(sealed, row[_SEALED.size :]):
        raise InvalidArgumentError(f"{TICKET} was not made by this server; ask model hplm")
    ticket = Ticket(
        key,
        num_tokens,
        bool(truncated),
        deadline or None,
        middle if middle < num_tokens else None,
        bool(exact),
        computing_us,
        LEVELS[level],
        bool(is_canary),
    )
    return SealedTicket(ticket, signed_us, serial)


@dataclass(frozen=True)
class TextWords:
    """A text in which entities are looked for, as far as it has been read, and where its words lie."""

    text: str
    words: RowWords


def encode_words(row: TextWords | None) -> bytes:
    """Encode the words of a row: their number, first tokens, starts and ends, the text; empty for other tasks."""
    if row is None:
        return b""
    words = row.words
    table = np.concatenate([np.array([len(words)], np.int32), words.first_tokens, words.starts, words.ends])
    read_up_to = letter_end(row.text, int(words.ends[-1])) if len(words) else 0
    return bytes(table.tobytes()) + row.text[:read_up_to].encode()


def decode_words(row: bytes) -> TextWords:
    if len(row) < _INT32.size:
        raise InvalidArgumentError(f"{WORDS} is empty for a task that needs it")
    num_words = int(np.frombuffer(row, np.int32, 1)[0])
    table_end = _INT32.size * (1 + 3 * num_words)
    if num_words < 0 or len(row) < table_end:
        raise InvalidArgumentError(f"{WORDS} is shorter than its {num_words} words")
    table: Int32 = np.frombuffer(row[_INT32.size : table_end], np.int32).reshape(3, num_words)
    try:
        text = row[table_end:].decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{WORDS} is not UTF-8 at byte {error.start}") from error
    words = RowWords(*table)
    if not words.lie_within(len(text)):
        raise InvalidArgumentError(f"{WORDS} has words that lie beyond its text")
    return TextWords(text, words)


def encode_marks(marks: WordMarks) -> bytes:
    """Encode where the words of a row begin, if some may be left out: a byte for each token."""
    return marks.tobytes()


def decode_marks(row: bytes, num_tokens: int) -> WordMarks:
    """Decode what `encode_marks` made of a row of so many tokens."""
    marks: WordMarks = np.frombuffer(row, np.uint8)
    if len(marks) != num_tokens:
        raise InvalidArgumentError(f"{WORDS} has {len(marks)} marks for the {num_tokens} tokens of its row")
    if marks.max(initial=0) > CONTINUES_WORD:
        raise InvalidArgumentError(f"{WORDS} has mark {marks.max()}, and the last one is {CONTINUES_WORD}")
    return marks


def fold_words(rows: Sequence[bytes]) -> UInt8Array:
    """Encoded words of the rows of a request → the tensor WORDS.

    Semantics:
        In front of each row its length in bytes, 4 of them; behind it zeros up to the longest row.
    Shape:
        `[B, 4 + longest row]`.
    """
    longest = max(map(len, rows))
    content = b"".join(_INT32.pack(len(row)) + row.ljust(longest, b"\0") for row in rows)
    return np.frombuffer(content, np.uint8).reshape(len(rows), _INT32.size + longest)


def unfold_words(folded: UInt8Array) -> list[bytes]:
    """The inverse of `fold_words`."""
    if folded.ndim != 2 or folded.shape[1] < _INT32.size:
        raise InvalidArgumentError(f"{WORDS} has shape {list(folded.shape)}, not [batch, {_INT32.size} or more]")
    return [_row_of_words(row.tobytes()) for row in folded]


def _row_of_words(row: bytes) -> bytes:
    (size_bytes,) = _INT32.unpack_from(row)
    if not 0 <= size_bytes <= len(row) - _INT32.size:
        raise InvalidArgumentError(f"{WORDS} has a row of {len(row) - _INT32.size} bytes that promises {size_bytes}")
    return row[_INT32.size : _INT32.size + size_bytes]


def fold_rows(rows: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """Rows of any lengths → one tensor whose first dimension is the batch, as Triton wants it, without padding rows.

    Semantics:
        The rows lie end to end; the flat array is cut into B equal parts, the last filled up with zeros.
    Shape:
        B rows `[L_b, H]` → `[B, ceil(ΣL / B), H]`.
    """
    if len(rows) == 1:  # most requests have one, which needs no copy
        return rows[0][None]
    total = sum(len(row) for row in rows)
    per_part = -(-total // len(rows))
    flat = np.zeros((len(rows) * per_part, rows[0].shape[1]), rows[0].dtype)
    np.concatenate(rows, out=flat[:total])
    return flat.reshape(len(rows), per_part, -1)


def unfold_rows(folded: npt.NDArray[_Number], lengths: Sequence[int]) -> list[npt.NDArray[_Number]]:
    """The inverse of `fold_rows`; the rows are views of the array."""
    flat = folded.reshape(-1, folded.shape[-1])
    ends = accumulate(lengths)
    return [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def require_hidden(
    folded: Rows, lengths: Sequence[int], name: str = HIDDEN, dtype: type[np.floating[Any]] = np.float16
) -> None:
    """Reject what `fold_rows` cannot have made of rows of these lengths; more would be kept as long as the rows are."""
    shape = (len(lengths), -(-sum(lengths) // len(lengths)))
    if folded.ndim != 3 or folded.dtype != dtype or folded.shape[:2] != shape:
        raise InvalidArgumentError(
            f"{name} is of {folded.dtype} and shape {list(folded.shape)}; its tickets promise {dtype.__name__} and "
            f"[{shape[0]}, {shape[1]}, hidden]"
        )


def owned(array: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return the array itself where NumPy owns its memory, as it does with tensors of Triton 24.10; else a copy."""
    memory = array if array.base is None else array.base
    return array if isinstance(memory, np.ndarray) and memory.flags.owndata else array.copy()


def _given_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A parameter that is given twice, in a header and in the body, say, must not mean either."""
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"the request parameter {shown(doubled)} is given twice")
    return parameters


_PARAMETERS = json.JSONDecoder(object_pairs_hook=_given_once)


def parse_parameters(text: str) -> dict[str, Any]:
    """The request parameters, checked: an unknown one is an error, because a misspelt deadline must not be ignored."""
    try:
        parameters: dict[str, Any] = _PARAMETERS.decode(text) if text else {}
    except (ValueError, RecursionError) as error:  # a number without end, say, which JSON has no name for
        raise InvalidArgumentError("the request parameters are not valid JSON") from error
    if not isinstance(parameters, dict):
        raise InvalidArgumentError("the request parameters are no JSON object")
    if unknown := set(parameters) - set(REQUEST_PARAMETERS):
        raise InvalidArgumentError(
            f"unknown request parameter {shown(sorted(unknown)[0])}; known are {', '.join(REQUEST_PARAMETERS)}"
        )
    if parameters.get("level", AUTO) not in LEVELS:
        raise InvalidArgumentError(f"level {shown(parameters['level'])} is not one of {_SHOWN_LEVELS}")
    return parameters


def deadline_in_us(parameters: dict[str, Any]) -> int | None:
    """Return how long after its arrival a request is to be answered."""
    value = parameters.get("deadline_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_DEADLINE_MS:
        limits = f"a whole number from 1 to {MAX_DEADLINE_MS}"
        raise InvalidArgumentError(f"deadline_ms must be {limits}, not {shown(value)}")
    return 1000 * value
