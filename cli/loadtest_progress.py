"""How a load test goes on, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.run import Progress as RunProgress
from loadtest.run import Watcher
from loadtest.schedule import Schedule


@contextmanager
def shown_progress(schedule: Schedule) -> Iterator[Watcher]:
    """Where it is on its way through the schedule, and what has come back."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("load", total=max(schedule.end_s, 1e-3), told="")

        def wait(here: int, needed: int) -> None:
            bars.update(bar, told=f"{here} of {needed} workers are there")

        def advance(now: RunProgress) -> None:
            waiting = now.due - now.answered - now.rejected - now.failed - now.unsent
            told = (
                f"{now.due:,} due · {now.answered:,} answered · {now.rejected:,} rejected · {now.failed:,} failed · "
                f"{max(0, waiting):,} under way"
            )
            bars.update(bar, completed=min(max(now.elapsed_s, 0.0), schedule.end_s), told=told)

        yield Watcher(wait, advance)
