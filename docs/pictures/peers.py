"""Texts a second beside other runtimes, from `bench.peers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results import rows

from builder.canvas import Canvas

_OURS = "ours, through Triton"
_TOP, _BAR, _STEP = 96, 20, 28
_SHOWN = 6


@dataclass(frozen=True)
class Panel:
    """One load: where its bars begin, how long the longest is, and its two lines of text.

    Its rows of the results have `tenants` and `lengths`; ours have `own_lengths`, because ours never come from the
    disk again.
    """

    left: float
    longest: float
    name: str
    how: str
    tenants: int
    lengths: str
    own_lengths: str


_PANELS = (
    Panel(180, 180, "16 tenants", "lengths of real texts, all models in memory", 16, "real", "real"),
    Panel(590, 210, "1,000 tenants", "128 tokens, 16 models fit into memory", 1_000, "128, from the disk", "128"),
)


def peers() -> str:
    measured = rows("no_amx/peers")
    shown = [(panel, _fastest(panel, measured)) for panel in _PANELS]
    canvas = Canvas(
        880,
        _TOP + _SHOWN * _STEP + 24,
        "Texts a second beside other runtimes",
        "; ".join(
            f"{panel.name}, {row['way']}: {row['rows per s']:.3g} rows/s"
            for panel, of_panel in shown
            for row in of_panel
        ),
    )
    canvas.text(28, 38, "Texts a second beside other runtimes, BERT-base on 2 CPU cores", size=18, bold=True)
    for panel, of_panel in shown:
        canvas.text(panel.left, 64, panel.name, size=14, bold=True)
        canvas.text(panel.left, 82, panel.how, size=12, ink="quiet")
        _bars(canvas, panel, of_panel)
    return canvas.svg()


def _fastest(panel: Panel, measured: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return ours through Triton, then the fastest peers."""
    of_load = [row for row in measured if row["tenants"] == panel.tenants]
    ours = [row for row in of_load if row["way"] == _OURS and row["lengths"] == panel.own_lengths]
    others = [row for row in of_load if not row["way"].startswith("ours") and row["lengths"] == panel.lengths]
    others.sort(key=lambda row: row["rows per s"], reverse=True)
    return [*ours, *others[: _SHOWN - len(ours)]]


def _bars(canvas: Canvas, panel: Panel, of_panel: list[Mapping[str, Any]]) -> None:
    highest = max(row["rows per s"] for row in of_panel)
    for number, row in enumerate(of_panel):
        y, is_ours = _TOP + number * _STEP, row["way"] == _OURS
        name = "hPLMs, through Triton" if is_ours else row["way"]
        length = max(2.0, panel.longest * row["rows per s"] / highest)
        canvas.text(panel.left - 10, y + 15, name, size=12, anchor="end", bold=is_ours)
        canvas.box(panel.left, y, length, _BAR, "own" if is_ours else "other", radius=2)
        canvas.text(panel.left + length + 8, y + 15, f"{row['rows per s']:.3g}", size=12, bold=is_ours)
