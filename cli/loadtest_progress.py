"""The progress of a load test, as one line."""

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
    """Show the way through the schedule, and the outcomes so far."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("load", total=max(schedule.end_s, 1e-3), state="")

        def wait(connected: int, needed: int) -> None:
            bars.update(bar, state=f"{connected} of {needed} workers are connected")

        def advance(now: RunProgress) -> None:
            waiting = now.due - now.answered - now.rejected - now.failed - now.unsent
            state = (
                f"{now.due:,} due · {now.answered:,} answered · {now.rejected:,} rejected · {now.failed:,} failed · "
                f"{max(0, waiting):,} under way"
            )
            bars.update(bar, completed=min(max(now.elapsed_s, 0.0), schedule.end_s), state=state)

        yield Watcher(wait, advance)
