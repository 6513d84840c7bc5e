"""The schemes of `bench.quality`, side by side for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_GROUP_WIDTH = 0.8


def draw_quality(rows: Sequence[Mapping[str, Any]], schemes: Sequence[str], path: Path) -> None:
    """A group of bars for each task, one for each scheme; whiskers are the standard deviation over the seeds."""
    figure = Figure(figsize=(4 + 1.2 * len(rows), 4.5), layout="constrained")
    axes = figure.subplots()
    width = _GROUP_WIDTH / len(schemes)
    for number, scheme in enumerate(schemes):
        values, spreads = zip(*(_value_and_spread(str(row[scheme])) for row in rows), strict=True)
        positions = [row + (number - (len(schemes) - 1) / 2) * width for row in range(len(rows))]
        axes.bar(positions, values, width, yerr=spreads if any(spreads) else None, label=scheme)
    axes.set_xticks(range(len(rows)), [f"{row['task']}\n{row['metric']}" for row in rows], fontsize=8)
    axes.set(ylabel="test result, in points of 100", ylim=(0, 100))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(ncols=len(schemes), loc="lower center")
    figure.savefig(path, metadata={"Date": None})


def _value_and_spread(shown: str) -> tuple[float, float]:
    """Read a figure; one seed has no spread."""
    value, _, spread = shown.partition(" ± ")
    return float(value), float(spread or 0)
