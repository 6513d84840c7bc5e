"""Readers that break the rule of `bench.fuzz`, each in its own way."""

from __future__ import annotations

import os
import time

from backends.errors import HplmError, InvalidArgumentError, presentable
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.target import Target


class LongMessageError(HplmError):
    """Steps around the root's own limit."""

    def __str__(self) -> str:
        return "x" * 5_000


class Raising(Target):
    """Rejects a third of its inputs, and breaks on another third."""

    name = "raising"
    cases = 100

    def attempt(self, draw: Draw) -> None:
        match draw.randrange(3):
            case 0:
                raise InvalidArgumentError("a bad input")
            case 1:
                raise KeyError("field")


class LongWinded(Target):
    name = "long-winded"
    cases = 10

    def attempt(self, draw: Draw) -> None:
        raise LongMessageError("short")


class Hiding(Target):
    """Turns a defect into an error of ours, as services do."""

    name = "hiding"
    cases = 10

    def attempt(self, draw: Draw) -> None:
        try:
            {}["field"]
        except KeyError as error:
            raise presentable(error) from error


class Slow(Target):
    name = "slow"
    cases = 1

    def attempt(self, draw: Draw) -> None:
        ends_s = time.process_time() + 1.1
        while time.process_time() < ends_s:
            pass


class Greedy(Target):
    name = "greedy"
    cases = 3

    def attempt(self, draw: Draw) -> None:
        if draw.case.number == 1:
            b"x" * (300 << 20)


class Ending(Target):
    """Ends its process at one case, and never returns from another."""

    name = "ending"
    cases = 12

    def attempt(self, draw: Draw) -> None:
        if draw.case.number == 3:
            os.abort()
        while draw.case.number == 7:
            time.sleep(0.1)
