"""How far a measurement is, which prints nothing before its end: a bar on a terminal, lines in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from builder.progress import Step, progress_bars

Item = TypeVar("Item")


def one_by_one(items: Sequence[Item], bench: str, phase: str) -> Iterator[Item]:
    with progress_bars(f"bench.{bench}") as report:
        for done, item in enumerate(items):
            report(Step(phase, done, len(items), str(item)))
            yield item
        report(Step(phase, len(items), len(items)))
