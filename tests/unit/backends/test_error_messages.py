"""Messages of errors are one short line, whatever they quote."""

from __future__ import annotations

import copy

import pytest

from backends.errors import HplmError, InvalidArgumentError, UnauthorisedError


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no such hPLM", "no such hPLM"),
        ("naïve 中文 👩‍👧 and a no-break space", "naïve 中文 👩‍👧 and a no-break space"),
        ("two\n  lines\r\n\n", "two lines"),
        ("cut\u2028here\x85and\x0bthere", "cut here and there"),
        ("\x1b[31mred\0", "\\x1b[31mred\\x00"),
        ("half of \ud83d", "half of \\ud83d"),
        ("", ""),
    ],
)
def test_a_message_is_one_printable_line(message: str, expected: str) -> None:
    assert str(InvalidArgumentError(message)) == expected


@pytest.mark.parametrize("letter", ["x", "\n", "\ud800", "é"])
def test_a_long_message_is_cut(letter: str) -> None:
    message = str(HplmError(f"it says {letter * 100_000}"))
    assert len(message) <= 2000
    assert len(message.splitlines()) == 1
    message.encode()


def test_what_a_message_begins_with_stays() -> None:
    assert str(UnauthorisedError("x" * 5000)).startswith("unauthorised: xxx")
    assert str(UnauthorisedError("x" * 5000)).endswith("x…")


def test_an_error_is_copied_as_it_is() -> None:
    error = HplmError("one\ntwo")
    assert str(copy.copy(error)) == "one two"
