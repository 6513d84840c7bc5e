"""A process that runs cases: what a bad input does to a process ends this one, and the runner starts another."""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from backends.home import Home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.memory import MOST_MIB, PeakMemory
from bench.kit.fuzz.rule import DEFECTS, Break, Case, Fate, Verdict, judge
from bench.kit.fuzz.target import Target

_MEMORY_BATCH = 250
"""Cases between two looks at the memory."""


@dataclass(frozen=True)
class Slice:
    """Cases of one target with numbers in a row."""

    target: str
    seed: int
    first: int
    count: int

    @property
    def cases(self) -> list[Case]:
        return [Case(self.target, self.seed, number) for number in range(self.first, self.first + self.count)]


@dataclass
class Tally:
    """How the cases of a slice ended."""

    fates: Counter[Fate] = field(default_factory=Counter)
    breaks: list[Break] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def cases(self) -> int:
        return self.fates.total()

    def note(self, case: Case, verdict: Verdict) -> None:
        self.fates[verdict.fate] += 1
        if verdict.fate is Fate.BROKEN:
            self.breaks.append(Break(case, verdict.why))

    def add(self, other: Tally) -> None:
        self.fates += other.fates
        self.breaks += other.breaks
        self.took_s += other.took_s


class Stand:
    """Holds the one target that is being run, in a folder of its own."""

    def __init__(self, targets: Mapping[str, type[Target]], home: Home) -> None:
        self._targets, self._home = targets, home
        self._target: Target | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="hplm-fuzz-"))

    def close(self) -> None:
        self._leave()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, cases: Slice, on_case: Callable[[int], None] = lambda number: None) -> Tally:
        """Run the cases of a slice; memory is looked at between batches, and the cases of a greedy one run again."""
        target, tally, began_s = self._at(cases.target), Tally(), time.monotonic()
        for start in range(0, cases.count, _MEMORY_BATCH):
            batch = cases.cases[start : start + _MEMORY_BATCH]
            peak = PeakMemory()
            for case in batch:
                on_case(case.number)
                tally.note(case, verdict_of(target, case))
            if peak.grown_mib > MOST_MIB:
                self._note_greedy(target, batch, tally)
        tally.took_s = time.monotonic() - began_s
        return tally

    def _note_greedy(self, target: Target, batch: Sequence[Case], tally: Tally) -> None:
        for case in batch:
            peak = PeakMemory()
            verdict_of(target, case)
            if peak.grown_mib > MOST_MIB:
                tally.note(case, Verdict(Fate.BROKEN, f"takes {peak.grown_mib:.0f} MiB"))

    def one(self, case: Case) -> Verdict:
        """Run one case again, and print where it came through."""
        verdict = verdict_of(self._at(case.target), case)
        if verdict.error is not None:
            traceback.print_exception(verdict.error)
        return verdict

    def _at(self, name: str) -> Target:
        if self._target is None or self._target.name != name:
            self._leave()
            folder = self._scratch / name
            folder.mkdir()
            self._target = self._targets[name](self._home, folder)
        return self._target

    def _leave(self) -> None:
        if self._target is not None:
            self._target.close()
            shutil.rmtree(self._scratch / self._target.name, ignore_errors=True)
            self._target = None


def verdict_of(target: Target, case: Case) -> Verdict:
    draw = Draw(case)
    return judge(lambda: target.attempt(draw), target.rejections)


@contextmanager
def hearing_defects() -> Iterator[None]:
    """Hear of defects; what else readers log and warn about bad inputs would be a million lines."""
    root, errors, nothing = logging.getLogger(), logging.getLogger("backends.errors"), logging.NullHandler()
    root.addHandler(nothing)
    errors.addHandler(DEFECTS)
    errors.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        errors.propagate = True
        errors.removeHandler(DEFECTS)
        root.removeHandler(nothing)


def work(targets: Mapping[str, type[Target]], home: Home, runner: Connection, at: Any, errors: Path) -> None:
    """Run the slices that come through the pipe, until it closes; `at` always tells the number of the case.

    What the C library and `faulthandler` print goes to the file `errors`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, sys.stderr.fileno())
    faulthandler.enable(sys.stderr)
    if "torch" in sys.modules:  # some target needs it
        sys.modules["torch"].set_num_threads(1)
    stand = Stand(targets, home)

    def on_case(number: int) -> None:
        at.value = number

    with hearing_defects(), suppress(EOFError, BrokenPipeError):
        while True:
            runner.send(stand.run(runner.recv(), on_case))
    stand.close()
