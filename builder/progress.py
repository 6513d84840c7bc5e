"""Progress of long work: builders say what step they are at, the command line draws it.

Usage:
    with progress_bars("acme/returns") as report:
        report(Step("tune adapters", 3, 120, "loss 0.42"))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_LINE_INTERVAL_S = 5.0
_LEAST_PACE_S = 2.0
"""A phase that has run for less says little about its pace."""
_MINUTE_S, _HOUR_S = 60, 3600


@dataclass(frozen=True)
class Step:
    """Phase of a piece of work, and how far it is."""

    phase: str
    done: int
    total: int
    note: str = ""


Report = Callable[[Step], None]


def ignore(step: Step) -> None:
    """Report to nobody."""


@contextmanager
def progress_bars(title: str, console: Console | None = None) -> Iterator[Report]:
    """A bar per phase on a terminal; a line every few seconds where the output is a file."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield progress_lines(title, _LINE_INTERVAL_S, console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield _bar_reporter(title, progress)


def _bar_reporter(title: str, progress: Progress) -> Report:
    tasks: dict[str, TaskID] = {}

    def report(step: Step) -> None:
        if step.phase not in tasks:
            tasks[step.phase] = progress.add_task(f"{title}: {step.phase}", total=step.total, note="")
        progress.update(tasks[step.phase], completed=step.done, total=step.total, note=step.note)

    return report


def progress_lines(title: str, interval_s: float, console: Console | None = None) -> Report:
    """Report by lines from processes that work side by side, whose bars would overwrite each other."""
    console = console or Console(stderr=True)
    last: dict[str, float] = {}
    began: dict[str, tuple[float, int]] = {}

    def report(step: Step) -> None:
        finished = step.done >= step.total
        began.setdefault(step.phase, (time.monotonic(), step.done))
        if finished or time.monotonic() - last.get(step.phase, 0.0) > interval_s:
            last[step.phase] = time.monotonic()
            note = f"  {step.note}" if step.note else ""
            line = Text(f"{title}: {step.phase} {step.done}/{step.total}{note}{_left(step, *began[step.phase])}")
            console.print(line, soft_wrap=True)

    return report


def _left(step: Step, began_s: float, done_before: int) -> str:
    """Estimate how long the rest of a phase takes, by its pace so far; nothing where that says little."""
    took_s, done = time.monotonic() - began_s, step.done - done_before
    if step.done >= step.total or done < 1 or took_s < _LEAST_PACE_S:
        return ""
    return f"  {in_words(took_s / done * (step.total - step.done))} left"


def in_words(duration_s: float) -> str:
    """Write a duration as `45 s`, `3 min 12 s` or `2 h 5 min`."""
    seconds = round(duration_s)
    if seconds < _MINUTE_S:
        return f"{seconds} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S} min {seconds % _MINUTE_S} s"
    return f"{seconds // _HOUR_S} h {seconds % _HOUR_S // _MINUTE_S} min"
