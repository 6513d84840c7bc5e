"""The fleet's load over time while a server dies: what each server was sent, and what was answered on time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.kit.fleet.faults import Story
from bench.kit.fleet.judgement import Floats, rates_of_counts, rates_over_time
from builder.canvas import Canvas, Point

_WIDTH, _LEFT, _RIGHT = 944, 84, 28
_BIN_S = 0.25
_CURVES = ("curve-first", "curve-second", "curve-third")
_TICKS = 4
_LEGEND_STEP = 200


@dataclass(frozen=True)
class _Panel:
    """A part of the picture with axes of its own; `most` is the value at its upper edge."""

    top: float
    height: float
    most: float
    end_s: float

    def point(self, at_s: float, value: float) -> Point:
        x = _LEFT + at_s / self.end_s * (_WIDTH - _LEFT - _RIGHT)
        return float(x), float(self.top + self.height * (1 - min(value, self.most) / self.most))


def draw_story(story: Story) -> str:
    """Draw a fault; returns SVG."""
    requests = story.fault.requests
    end_s = float(np.ceil(requests.scheduled_s.max(initial=1.0)))
    offered = rates_over_time(requests.scheduled_s, end_s, _BIN_S)
    on_time = rates_over_time(requests.scheduled_s[requests.in_time], end_s, _BIN_S)
    centres_s = (np.arange(len(offered)) + 0.5) * _BIN_S
    sent = {name: rates_of_counts(story.sampled_s, counts, centres_s) for name, counts in story.sent.items()}
    highest = max(1.0, *(float(rates.max(initial=0.0)) for rates in sent.values()))
    canvas = Canvas(_WIDTH, 470, "A fleet while a server dies", _in_words(story))
    canvas.text(28, 38, "A fleet while a server dies", size=18, bold=True)
    canvas.text(28, 60, _in_words(story), size=13, ink="quiet")
    servers, shares = _Panel(116, 190, highest, end_s), _Panel(354, 76, 100.0, end_s)
    _draw_axes(canvas, servers, "requests a second, sent to")
    for number, (name, rates) in enumerate(sent.items()):
        curve = _CURVES[number % len(_CURVES)]
        legend = _LEFT + 190 + number * _LEGEND_STEP
        canvas.dot(legend, 96, curve)
        canvas.text(legend + 10, 100, name, size=12)
        canvas.path(_points(servers, centres_s, rates), curve, width=2)
    _draw_axes(canvas, shares, "answered on time, percent")
    share = np.where(offered > 0, 100 * on_time / np.maximum(offered, 1e-9), 100.0)
    canvas.path(_points(shares, centres_s, share), "curve-third", width=2)
    for number, (at_s, words) in enumerate(_moments(story)):
        (x, top), (_, bottom) = servers.point(at_s, servers.most), shares.point(at_s, 0)
        canvas.path([(x, top), (x, bottom)], "line", width=1, dashes="4 3")
        near, anchor = (-5, "end") if x > _WIDTH - _LEGEND_STEP else (5, "start")
        canvas.text(x + near, top + 12 + 16 * number, words, size=12, ink="quiet", anchor=anchor)
    for at_s in np.linspace(0, end_s, 6).tolist():
        x, y = shares.point(at_s, 0)
        canvas.text(x, y + 20, f"{at_s:.3g} s", size=12, ink="quiet", anchor="middle")
    return canvas.svg()


def _in_words(story: Story) -> str:
    fault = story.fault
    verb = "is killed" if story.kind == "loss" else "is stopped"
    return (
        f"{story.rate_per_s:.0f} requests a second; {story.server} {verb}; {fault.num_failed} of "
        f"{len(fault.requests):,} requests failed, on time for good after {fault.recovery_s:.2g} s"
    )


def _moments(story: Story) -> list[tuple[float, str]]:
    return [(story.fault.at_s, f"{story.server} dies"), (story.ready_s, "ready again")]


def _draw_axes(canvas: Canvas, panel: _Panel, title: str) -> None:
    canvas.text(_LEFT, panel.top - 16, title, size=12, bold=True)
    for tick in range(_TICKS + 1):
        value = panel.most * tick / _TICKS
        left, right = panel.point(0, value), panel.point(panel.end_s, value)
        canvas.path([left, right], "grid", width=1)
        if panel.height > _LEGEND_STEP / 2 or tick in (0, _TICKS):
            canvas.text(left[0] - 8, left[1] + 4, f"{value:.3g}", size=12, ink="quiet", anchor="end")


def _points(panel: _Panel, times_s: Floats, values: Floats) -> Sequence[Point]:
    return [panel.point(at_s, value) for at_s, value in zip(times_s.tolist(), values.tolist(), strict=True)]
