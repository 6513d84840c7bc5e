"""Texts a second by the number of tenants, from `bench.throughput`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results import rows

from builder.canvas import Canvas

_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 700, 84, 330


@dataclass(frozen=True)
class Scheme:
    """A curve: its colour, its two lines of text, and how much lower these stand than its last point."""

    colour: str
    name: str
    how: str
    lower: float = 0.0


_SCHEMES = {
    "hplm": Scheme("curve-first", "hPLMs", "all share one engine"),
    "dedicated": Scheme("curve-second", "a model each", "swapped from memory", lower=-8.0),
    "dedicated_cold": Scheme("curve-third", "a model each", "swapped from disk", lower=2.0),
}


def tenants() -> str:
    measured = rows("throughput")
    canvas = Canvas(
        880,
        400,
        "Texts a second by the number of tenants",
        "; ".join(f"{row['scheme']}, {row['tenants']} tenants: {row['rows per s']:.0f} rows/s" for row in measured),
    )
    canvas.text(28, 38, "Texts a second by the number of tenants", size=18, bold=True)
    canvas.text(
        28, 60, "BERT-base, 128 tokens, 2 CPU cores, real Triton; the memory holds 16 models of their own", ink="quiet"
    )
    highest = 20 * math.ceil(max(row["rows per s"] for row in measured) / 20)
    counts = sorted({row["tenants"] for row in measured})
    _axes(canvas, counts, highest)
    for name, scheme in _SCHEMES.items():
        _curve(canvas, scheme, [row for row in measured if row["scheme"] == name], counts, highest)
    return canvas.svg()


def _axes(canvas: Canvas, counts: list[int], highest: int) -> None:
    for value in range(0, highest + 1, 20):
        y = _height(value, highest)
        canvas.path([(_LEFT, y), (_RIGHT, y)], edge="grid" if value else "line")
        canvas.text(_LEFT - 12, y + 5, f"{value}", size=13, ink="quiet", anchor="end")
    for count in counts:
        x = _across(count, counts)
        canvas.path([(x, _BOTTOM), (x, _BOTTOM + 5)])
        canvas.text(x, _BOTTOM + 23, f"{count:,}", size=13, ink="quiet", anchor="middle")
    canvas.text((_LEFT + _RIGHT) / 2, _BOTTOM + 48, "tenants (log scale)", size=13, ink="quiet", anchor="middle")


def _curve(canvas: Canvas, scheme: Scheme, measured: list[Mapping[str, Any]], counts: list[int], highest: int) -> None:
    points = [(_across(row["tenants"], counts), _height(row["rows per s"], highest)) for row in measured]
    canvas.path(points, edge=scheme.colour, width=2.5)
    for (x, y), row in zip(points, measured, strict=True):
        canvas.dot(x, y, scheme.colour)
        label = f"{row['rows per s']:.0f}"
        if len(points) > 1:
            canvas.text(x, y - 12, label, size=13, ink=scheme.colour, anchor="middle", bold=True)
        else:
            canvas.text(x - 10, y + 5, label, size=13, ink=scheme.colour, anchor="end", bold=True)
    x, y = points[-1]
    canvas.text(x + 14, y + 1 + scheme.lower, scheme.name, size=14, ink=scheme.colour, bold=True)
    canvas.text(x + 14, y + 18 + scheme.lower, scheme.how, size=12, ink="quiet")


def _across(count: int, counts: list[int]) -> float:
    return _LEFT + 24 + (_RIGHT - _LEFT - 48) * math.log(count / counts[0]) / math.log(counts[-1] / counts[0])


def _height(value: float, highest: int) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / highest
