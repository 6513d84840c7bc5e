"""Failures that stay the answer for a while."""

from __future__ import annotations

import time

import pytest

from backends.errors import CorruptFileError
from backends.failures import Failures


def fail(failures: Failures, key: str, tries: list[str]) -> str:
    """The message of what is raised."""
    with pytest.raises(CorruptFileError) as caught, failures.remembered(key):
        tries.append(key)
        raise CorruptFileError(f"table.bin: failure {len(tries)}")
    return str(caught.value)


def test_what_failed_fails_again_at_once_and_nothing_else_does() -> None:
    failures, tries = Failures(), list[str]()
    first = fail(failures, "one", tries)
    assert [fail(failures, "one", tries) for _ in range(3)] == [first] * 3
    assert tries == ["one"]
    fail(failures, "other", tries)
    assert tries == ["one", "other"]


def test_after_a_while_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    failures, tries = Failures(), list[str]()
    fail(failures, "one", tries)
    now_s[0] += 31
    fail(failures, "one", tries)
    assert tries == ["one", "one"]
    now_s[0] += 31
    with failures.remembered("one"):
        tries.append("worked")
    assert tries[2:] == ["worked"]


def test_what_is_no_damage_is_tried_again_at_once() -> None:
    """The next request may find room, or a file that could not be opened for a moment."""
    failures, tries = Failures(), list[int]()
    for attempt in range(3):
        with pytest.raises(OSError), failures.remembered("one"):
            tries.append(attempt)
            raise OSError("too many open files")
    assert tries == [0, 1, 2]
