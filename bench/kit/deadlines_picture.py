"""The policies of `bench.deadlines`, side by side over the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_PANELS = {"utility per s": "utility per second", "on time": "answered on time, of all", "goodput": "on time per s"}


def draw_deadlines(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A row of panels for each width of the lengths, in each a line for each policy."""
    widths = list(dict.fromkeys(row["lengths"] for row in rows))
    figure = Figure(figsize=(4.5 * len(_PANELS), 3.6 * len(widths)), layout="constrained")
    panels = figure.subplots(len(widths), len(_PANELS), squeeze=False)
    for width, axes_of_width in zip(widths, panels, strict=True):
        for (column, title), axes in zip(_PANELS.items(), axes_of_width, strict=True):
            for policy in dict.fromkeys(row["policy"] for row in rows):
                of_policy = [row for row in rows if (row["policy"], row["lengths"]) == (policy, width)]
                points = sorted((row["load"], row[column]) for row in of_policy)
                axes.plot([load for load, _ in points], [value for _, value in points], marker="o", label=policy)
            axes.set(xlabel="load, in times of the capacity", ylabel=title, title=f"lengths: {width}")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
