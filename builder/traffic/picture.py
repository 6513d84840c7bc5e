"""Traffic as a picture: requests a second over time, in a line of characters and as SVG."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from backends.moments import shown_moment
from builder.canvas import Canvas, Point
from builder.traffic.by import By
from builder.traffic.figures import first_times_us, groups
from builder.traffic.traffic import Int64, Traffic

_BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING, _NOT_RECORDED = "·", " "
_CHARACTERS = 60
_WIDTH, _HEIGHT = 760, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 84, 48
_POINTS = 200
_CURVES = ("curve-first", "curve-second", "curve-third")
_TICKS = 4
_LONGEST_NAME = 40


def sparkline(traffic: Traffic) -> str:
    """Draw the rate in a line: a dot where nothing came, a blank where nothing was recorded."""
    rates = _rates(traffic, first_times_us(traffic.requests), _CHARACTERS)
    most = float(np.nanmax(rates, initial=0.0))
    return "".join(_character(rate, most) for rate in rates.tolist())


def _character(rate: float, most: float) -> str:
    if np.isnan(rate):
        return _NOT_RECORDED
    return _BLOCKS[min(len(_BLOCKS) - 1, int(rate / most * len(_BLOCKS)))] if rate else _NOTHING


def draw_rates(traffic: Traffic, by: By) -> str:
    """Draw the rates of the three with most rows; returns SVG."""
    shown = [group[by.value] for group in groups(traffic, by)[: len(_CURVES)]]
    names = np.array([by.of(hplm) for hplm in traffic.hplms])
    requests = traffic.requests
    curves = [_rates(traffic, first_times_us(requests.where(names[requests.hplm] == name)), _POINTS) for name in shown]
    most = max((float(np.nanmax(curve, initial=0.0)) for curve in curves), default=0.0) or 1.0
    canvas = Canvas(
        _WIDTH, _HEIGHT, "Recorded traffic", f"Requests a second over time by {by.value}: {', '.join(shown)}"
    )
    canvas.text(28, 36, "Requests a second", size=18, bold=True)
    _draw_axes(canvas, traffic, most)
    for number, (name, rates, curve) in enumerate(zip(shown, curves, _CURVES, strict=False)):
        canvas.dot(34 + 236 * number, 58, curve)
        canvas.text(44 + 236 * number, 62, name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…", size=12)
        for piece in _pieces(rates):
            canvas.path([_point(place, float(rates[place]) / most) for place in piece], curve, width=1.5)
    return canvas.svg()


def _draw_axes(canvas: Canvas, traffic: Traffic, most: float) -> None:
    for tick in range(_TICKS + 1):
        (left, y), (right, _) = _point(0, tick / _TICKS), _point(_POINTS - 1, 0)
        canvas.path([(left, y), (right, y)], "grid", width=1)
        canvas.text(left - 8, y + 4, f"{most * tick / _TICKS:.3g}", size=12, ink="quiet", anchor="end")
    if len(traffic.spans_us):
        for place, anchor, us in ((0, "start", traffic.spans_us[0, 0]), (_POINTS - 1, "end", traffic.spans_us[-1, 1])):
            x, y = _point(place, 0)
            canvas.text(x, y + 22, shown_moment(us / 1e6), size=12, ink="quiet", anchor=anchor)


def _point(place: int, height: float) -> Point:
    x = _LEFT + place / (_POINTS - 1) * (_WIDTH - _LEFT - _RIGHT)
    return x, _HEIGHT - _BOTTOM - height * (_HEIGHT - _TOP - _BOTTOM)


def _pieces(rates: npt.NDArray[np.float64]) -> list[list[int]]:
    """Return the places that are recorded, in runs."""
    places = np.flatnonzero(~np.isnan(rates))
    return [run.tolist() for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(run)]


def _rates(traffic: Traffic, times_us: Int64, count: int) -> npt.NDArray[np.float64]:
    """Return requests a second in equal parts of the time; NaN where nothing was recorded.

    Shape: times_us [requests] -> [count]
    """
    spans_us = traffic.spans_us
    if not len(spans_us):
        return np.full(count, np.nan)
    edges_us = np.linspace(spans_us[0, 0], max(spans_us[-1, 1], spans_us[0, 0] + 1), count + 1)
    began, ended = np.maximum(edges_us[:-1, None], spans_us[:, 0]), np.minimum(edges_us[1:, None], spans_us[:, 1])
    recorded_s = np.maximum(ended - began, 0).sum(axis=1) / 1e6
    counts = np.histogram(np.clip(times_us, edges_us[0], edges_us[-1]), edges_us)[0]
    rates: npt.NDArray[np.float64] = np.where(recorded_s > 0, counts / np.where(recorded_s > 0, recorded_s, 1), np.nan)
    return rates
