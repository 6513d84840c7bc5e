from __future__ import annotations

import pytest

from hplm_client import Classification, ConnectionLostError, NotReadyError, UnavailableError
from loadtest.outcome import Kind, Outcome, general


def test_kinds() -> None:
    answer = Classification(
        hplm="a/b",
        version=4,
        task="classification",
        truncated=False,
        exact=True,
        label="x",
        score=1.0,
        scores={"x": 1.0},
    )
    assert Outcome.of(7, 1.0, 2.0, answer) == Outcome(7, 1.0, 2.0, Kind.ANSWERED, "", 4)
    for error, kind in (
        (UnavailableError("the queue is full"), Kind.REJECTED),
        (NotReadyError("server not ready"), Kind.FAILED),
        (ConnectionLostError("gone"), Kind.FAILED),
    ):
        assert Outcome.of(0, 0.0, 0.0, error).kind == kind


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("would finish in 12.5 ms, past its deadline of 10 ms", "would finish in … ms, past its deadline of … ms"),
        ("hPLM 'acme/x y' does not exist", "hPLM … does not exist"),
        ("cannot connect to server:8001: refused", "cannot connect to server:… refused"),
    ],
)
def test_reasons_that_differ_in_numbers_and_names_only_are_one(message: str, reason: str) -> None:
    assert general(message) == reason


def test_reasons_are_short_and_one_line() -> None:
    assert general("word " * 99 + "\nmore") == ("word " * 99)[:120]
