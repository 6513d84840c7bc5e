"""A request of several rows: answered once, in the order of its rows, whatever order they end in."""

from __future__ import annotations

from itertools import permutations

import pytest

from backends.engine.open_request import Answered, OpenRequest
from backends.errors import NotFoundError


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_answers_come_in_the_order_of_the_rows(order: tuple[int, ...]) -> None:
    told: list[Answered] = []
    request = OpenRequest(3, told.append)
    for number in order:
        assert not told and request.is_open()
        request.row(number)(b"%d" % number)
    assert told == [[b"0", b"1", b"2"]]
    assert not request.is_open()


def test_the_first_error_is_the_answer() -> None:
    told: list[Answered] = []
    request, error = OpenRequest(3, told.append), NotFoundError("no such hPLM")
    request.row(2)(b"2")
    request.row(0)(error)
    request.row(1)(NotFoundError("another"))
    request.row(0)(b"0")
    assert told == [error]
