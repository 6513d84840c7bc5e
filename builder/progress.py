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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_LINE_INTERVAL_S = 5.0


@dataclass(frozen=True)
class Step:
    """Phase of a piece of work, and how far it is."""

    phase: str
    done: int
    total: int
    note: str = ""


Report = Callable[[Step], None]


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

    def report(step: Step) -> None:
        finished = step.done >= step.total
        if finished or time.monotonic() - last.get(step.phase, 0.0) > interval_s:
            last[step.phase] = time.monotonic()
            note = f"  {step.note}" if step.note else ""
            line = Text(f"{title}: {step.phase} {step.done}/{step.total}{note}")
            console.print(line, soft_wrap=True)

    return report
