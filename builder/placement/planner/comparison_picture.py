"""A plan and what it is compared with as a picture: what is on time over the load."""

from __future__ import annotations

from builder.canvas import Canvas, Point
from builder.placement.planner.plan import Plan

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 128, 58
_TICKS = 5
_OTHERS = tuple(zip(("", "8 6", "2 4") * 2, ("curve-second", "curve-third") * 3, strict=True))
_LINES = (("", "curve-first"), *_OTHERS)
"""Dashes and colour of each way to place, the plan first: where two meet, the later one lets the other be seen."""
_PER_ROW, _LEGEND_ROW = 3, 20


def draw_comparison(plan: Plan) -> str:
    """Draw the shares of held-out requests that are on time at multiples of the load; returns SVG."""
    ways = [each for each in plan.alternatives if each.over_load]
    most = max(load for each in ways for load, _ in each.over_load)
    canvas = Canvas(_WIDTH, _HEIGHT, "On time over the load", f"Ways to place: {', '.join(each.name for each in ways)}")
    canvas.text(28, 36, "On time over the load", size=18, bold=True)
    canvas.text(28, 58, "held-out requests, by simulation", size=13, ink="quiet")
    _draw_axes(canvas, [load for load, _ in ways[0].over_load], most)
    for number, (way, (dashes, curve)) in enumerate(zip(ways, _LINES[: len(ways)], strict=True)):
        points = [_point(load / most, share) for load, share in way.over_load]
        width = 5.0 if number == 0 else 2.0
        canvas.path(points, curve, width, dashes)
        x, y = 28 + number % _PER_ROW * (_WIDTH - 56) / _PER_ROW, 80 + number // _PER_ROW * _LEGEND_ROW
        canvas.path([(x, y), (x + 30, y)], curve, width, dashes)
        canvas.text(x + 38, y + 4, way.name, size=12, bold=number == 0)
    return canvas.svg()


def _draw_axes(canvas: Canvas, loads: list[float], most: float) -> None:
    for tick in range(_TICKS + 1):
        left, right = _point(0, tick / _TICKS), _point(1, tick / _TICKS)
        canvas.path([left, right], "grid", width=1)
        canvas.text(left[0] - 8, left[1] + 4, f"{100 * tick / _TICKS:.0f} %", size=12, ink="quiet", anchor="end")
    for load in loads:
        x, y = _point(load / most, 0)
        canvas.text(x, y + 18, f"{load:g} ×", size=12, ink="quiet", anchor="middle")
    canvas.text(_WIDTH / 2, _HEIGHT - 14, "times the recorded load", size=12, ink="quiet", anchor="middle")


def _point(across: float, share: float) -> Point:
    x = _LEFT + across * (_WIDTH - _LEFT - _RIGHT)
    return x, _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
