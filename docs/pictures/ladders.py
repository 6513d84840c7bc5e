"""What texts take with a ladder and by all layers, task by task, from `bench.levels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results import rows

from builder.canvas import Canvas

_TOP, _BAR, _STEP = 108, 14, 46


@dataclass(frozen=True)
class Panel:
    """One load: where its bars begin, how long the longest is, its text, and the columns of the results."""

    left: float
    longest: float
    name: str
    column: str


_PANELS = (
    Panel(250, 210, "one text at a time", "alone ms"),
    Panel(600, 200, "at 0.8 of what all layers bear", "loaded ms"),
)
_LEVELS = (("auto", "own"), ("full", "other"))


def ladders() -> str:
    measured = [row for row in rows("levels") if "after" in row]
    canvas = Canvas(
        880,
        _TOP + len(measured) * _STEP + 12,
        "Mean latency with a ladder and by all layers",
        "; ".join(
            f"{row['task']}, {panel.name}: {row[f'{panel.column}, auto']:.3g} ms, not "
            f"{row[f'{panel.column}, full']:.3g}"
            for row in measured
            for panel in _PANELS
        ),
    )
    canvas.text(28, 38, "Mean milliseconds of a text", size=18, bold=True)
    canvas.box(28, 54, 14, 14, "own", radius=2)
    canvas.text(48, 66, "with a ladder", size=13)
    canvas.box(160, 54, 14, 14, "other", radius=2)
    canvas.text(180, 66, "by all layers", size=13)
    for panel in _PANELS:
        canvas.text(panel.left, 92, panel.name, size=14, bold=True)
        _bars(canvas, panel, measured)
    for number, row in enumerate(measured):
        y = _TOP + number * _STEP
        canvas.text(28, y + 12, row["task"], size=13, bold=True)
        canvas.text(28, y + 29, f"{100 * row['answered early']:.0f} % answered early", size=12, ink="quiet")
    return canvas.svg()


def _bars(canvas: Canvas, panel: Panel, measured: Sequence[Mapping[str, Any]]) -> None:
    highest = max(row[f"{panel.column}, {level}"] for row in measured for level, _ in _LEVELS)
    for number, row in enumerate(measured):
        for offset, (level, surface) in enumerate(_LEVELS):
            y, took_ms = _TOP + number * _STEP + offset * (_BAR + 3), row[f"{panel.column}, {level}"]
            length = max(2.0, panel.longest * took_ms / highest)
            canvas.box(panel.left, y, length, _BAR, surface, radius=2)
            canvas.text(panel.left + length + 8, y + 12, f"{took_ms:.3g}", size=12, bold=level == "auto")
