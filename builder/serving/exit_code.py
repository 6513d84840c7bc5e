"""The exit code of a kept program in words."""

from __future__ import annotations

import signal
from contextlib import suppress

_SIGNALLED = 128
"""The number that is added to a signal's in the exit code of a program that it ends."""


def how_ended(program: str, code: int) -> str:
    """Say how a program ended: by which signal, with which code, or with its keeper, whose code is negative."""
    if code < 0:
        return f"the keeper of {program} ended by {signal.Signals(-code).name}"
    with suppress(ValueError):
        return f"{program} ended by {signal.Signals(code - _SIGNALLED).name}"
    return f"{program} ended with code {code}"


def why_ended(program: str, code: int, last_words: str) -> str:
    """Say how a program ended, and its last words on that; one that was killed, or whose keeper was, had none."""
    was_killed = code < 0 or code == _SIGNALLED + signal.SIGKILL
    return how_ended(program, code) if was_killed else f"{how_ended(program, code)}: {last_words}"
