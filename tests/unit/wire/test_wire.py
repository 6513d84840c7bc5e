from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from backends.deadline_batcher import SOURCE
from backends.errors import InvalidArgumentError
from backends.wire import (
    LEVELS,
    TICKET_COLUMNS,
    TICKET_VERSION,
    Ticket,
    decode_tickets,
    encode_tickets,
    fold_rows,
    fold_words,
    owned,
    require_hidden,
    unfold_rows,
    unfold_words,
)


@pytest.mark.parametrize("seed", range(20))
def test_folding_loses_nothing_and_adds_less_than_a_row_of_tokens(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = chance.integers(1, 30, chance.integers(1, 16)).tolist()
    rows = [chance.normal(size=(length, 8)).astype(np.float16) for length in lengths]
    folded = fold_rows(rows)
    assert folded.shape[0] == len(rows)
    assert folded.shape[0] * folded.shape[1] - sum(lengths) < len(rows)
    for row, again in zip(rows, unfold_rows(folded, lengths), strict=True):
        assert np.array_equal(row, again)


@pytest.mark.parametrize("rows", [[b""], [b"", b""], [b"abc"], [b"", b"one\0", b"\0\0"], [b"x" * 1000, b""]])
def test_words_of_rows_travel_together(rows: list[bytes]) -> None:
    folded = fold_words(rows)
    assert folded.dtype == np.uint8 and len(folded) == len(rows)
    assert unfold_words(folded) == rows


@pytest.mark.parametrize(
    "folded",
    [
        np.zeros((1, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.array([[2, 0, 0, 0, 1]], np.uint8),
        np.full((2, 5), 255, np.uint8),
    ],
)
def test_words_that_promise_more_than_there_is(folded: npt.NDArray[np.uint8]) -> None:
    with pytest.raises(InvalidArgumentError, match="WORDS has"):
        unfold_words(folded)


def test_only_foreign_memory_is_copied() -> None:
    own = np.ones((1, 4, 8), np.float16)
    assert owned(own) is own
    view = own[:, 1:]
    assert owned(view) is view
    foreign = np.frombuffer(bytes(64), np.float16)
    assert not np.shares_memory(owned(foreign), foreign)


def test_tickets_round_trip() -> None:
    tickets = [
        Ticket(7, 12, True, 123_456_789_012, 5),
        Ticket(2**40, 1, False, None),
        Ticket(3, 2, False, None, 1, False, 77),
        *(Ticket(3, 2, False, None, level=level) for level in LEVELS),
    ]
    assert [one.ticket for one in decode_tickets(encode_tickets(tickets))] == tickets


def test_levels_that_tickets_know_keep_their_numbers() -> None:
    assert LEVELS[:5] == ("auto", "full", "early", "students", "students-1") and LEVELS[-1] == "students-8"


def test_a_ticket_of_another_version_is_a_clear_error() -> None:
    rows = encode_tickets([Ticket(7, 12, False, None)] * 2)
    rows[1, TICKET_COLUMNS.index("version")] = TICKET_VERSION + 1
    with pytest.raises(InvalidArgumentError, match=f"version {TICKET_VERSION + 1}; this release reads"):
        decode_tickets(rows)


def test_the_plugin_declares_the_same_columns_and_version() -> None:
    header = SOURCE.with_name("batch_plan.h").read_text()
    (body,) = re.findall(r"struct Ticket \{(.*?)\n\n", header, re.DOTALL)
    assert tuple(re.findall(r"int64_t (\w+);", body)) == TICKET_COLUMNS
    assert re.findall(r"kTicketVersion = (\d+);", header) == [str(TICKET_VERSION)]


def test_tensors_that_do_not_belong_together() -> None:
    require_hidden(np.zeros((2, 5, 3), np.float16), [4, 5])
    for shape in ((2, 4, 3), (2, 6, 3), (1, 9, 3), (3, 3, 3), (9, 3)):
        with pytest.raises(InvalidArgumentError, match=r"promise float16 and \[2, 5, hidden\]"):
            require_hidden(np.zeros(shape, np.float16), [4, 5])
    with pytest.raises(InvalidArgumentError, match="is of float32"):
        require_hidden(np.zeros((2, 5, 3), np.float32), [4, 5])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="TICKET"):
        decode_tickets(np.zeros((2, 3), np.int64))
