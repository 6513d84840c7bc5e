"""The rule that every reader keeps: it succeeds, or raises an error of ours in one short line, soon.

A case is named `target:seed:number` and can be repeated alone.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from backends.errors import HplmError

LONGEST_MESSAGE = 4_000
MOST_CPU_S = 1.0
"""Processor time, since other work of the machine is not the reader's fault."""
MOST_S = 10.0
_FRAMES = 3


class Fate(StrEnum):
    """How a case ended."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    BROKEN = "broken"


@dataclass(frozen=True)
class Case:
    """The name of one random input."""

    target: str
    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.target}:{self.seed}:{self.number}"


@dataclass(frozen=True)
class Break:
    """A case that broke the rule."""

    case: Case
    why: str

    def __str__(self) -> str:
        return f"{self.case}  {self.why}"


class Verdict(NamedTuple):
    """How a case ended; `why` is empty unless it broke the rule, and `error` is what was raised."""

    fate: Fate
    why: str = ""
    error: BaseException | None = None


class Defects(logging.Handler):
    """Hears of exceptions that `presentable` has turned into an error of ours: nobody meant to raise them."""

    def __init__(self) -> None:
        super().__init__()
        self.last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.last = record.exc_info[1]


DEFECTS = Defects()


class HarmedError(AssertionError):
    """A good neighbour of a bad input was answered otherwise than alone."""


def judge(attempt: Callable[[], None], rejections: tuple[type[Exception], ...] = (HplmError,)) -> Verdict:
    """Run a case and hold it against the rule; memory is looked at by `PeakMemory`.

    Args:
        attempt: Runs the reader.
        rejections: How the reader may reject.
    """
    DEFECTS.last = None
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    try:
        attempt()
        verdict = Verdict(Fate.ACCEPTED)
    except rejections as error:
        why = wrong_message(str(error))
        verdict = Verdict(Fate.BROKEN if why else Fate.REJECTED, why, error)
    except Exception as error:
        verdict = Verdict(Fate.BROKEN, told(error), error)
    if DEFECTS.last is not None:
        verdict = Verdict(Fate.BROKEN, told(DEFECTS.last), DEFECTS.last)
    cpu_s, took_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
    if verdict.fate is not Fate.BROKEN and (cpu_s > MOST_CPU_S or took_s > MOST_S):
        return Verdict(Fate.BROKEN, f"took {cpu_s:.1f} s of processor time, {took_s:.1f} s in all", verdict.error)
    return verdict


def wrong_message(message: str) -> str:
    """Return what is wrong with the message of a rejection; empty where nothing is."""
    if len(message) > LONGEST_MESSAGE:
        return f"a message of {len(message)} characters: {message[:80]!r}"
    if len(message.splitlines()) != 1:
        return f"a message of {len(message.splitlines())} lines: {message[:80]!r}"
    try:
        message.encode()
    except UnicodeEncodeError:
        return f"a message that is no Unicode: {message[:80]!r}"
    return ""


def told(error: BaseException) -> str:
    """An exception in one line, with the innermost places that it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:200]!r} at {places}"
