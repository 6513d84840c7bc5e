"""The pictures of a report, as SVG that stands in the page itself."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from loadtest import figures
from loadtest.figures import Column, Planned
from loadtest.requests import Requests

# Okabe and Ito's colours, safe for colour-blind readers; lines differ in their dashes too.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#6b7280"
_LINES = ((BLUE, "-"), (RED, "--"))
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hplm",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "axes.axisbelow": True,
    "axes.edgecolor": "#9ca3af",
    "legend.frameon": False,
}
_SIZE = (6.4, 3.6)
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_MOST_POINTS = 600
_MOST_BARS = 8
_LONGEST_LABEL = 46
_ID = re.compile(r'(\bid="|url\(#|xlink:href="#)')


@dataclass(frozen=True, eq=False)
class Shown:
    """One run as pictures show it; `name` stands in legends."""

    name: str
    requests: Requests
    planned: Planned
    batches: Mapping[int, float] | None
    lateness_limit_ms: float


Corner = Literal["lower right", "upper left", "upper right"]
Draw = Callable[[Axes, Sequence[Shown]], None]


def pictures(runs: Sequence[Shown]) -> dict[str, str]:
    """All pictures of one run, or of two over each other: names to SVG."""
    drawings: dict[str, Draw] = {
        "latency": _draw_latency,
        "throughput": _draw_throughput,
        "attainment": _draw_attainment,
        "levels": _draw_levels,
        "fairness": _draw_fairness,
        "reasons": _draw_reasons,
        "batches": _draw_batches,
        "sending": _draw_sending,
    }
    return {name: _svg(name, draw, runs) for name, draw in drawings.items()}


def _svg(name: str, draw: Draw, runs: Sequence[Shown]) -> str:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        draw(figure.subplots(), runs)
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata=_NO_METADATA)
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :]
    # Several pictures share a page, so their names must not meet.
    return _ID.sub(lambda match: f"{match.group()}{name}-", svg)


def _draw_latency(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(
        title="Latency of answers", xlabel="from scheduled time to answer (ms, log scale)", ylabel="share of answers"
    )
    drawn = False
    for run, (colour, dashes) in zip(runs, _LINES, strict=False):
        latency_ms = 1000 * run.requests.latency_s[run.requests.answered]
        if len(latency_ms):
            middle, high = np.percentile(latency_ms, (50, 99))
            label = f"{_prefix(run, runs)}p50 {_ms(middle)}, p99 {_ms(high)}"
            axes.plot(*_cdf(latency_ms), color=colour, linestyle=dashes, label=label)
            axes.plot((middle, high), (0.5, 0.99), "o", color=colour, markersize=4)
            drawn = True
    deadlines = runs[0].requests.deadline_ms
    if drawn and np.isfinite(deadlines).any():
        _draw_deadline(axes, float(np.nanmin(deadlines)), float(np.nanmax(deadlines)))
    _finish_cdf(axes, drawn, "no answers")


def _draw_deadline(axes: Axes, low_ms: float, high_ms: float) -> None:
    if low_ms == high_ms:
        axes.axvline(low_ms, color=GREY, linestyle=":", label=f"deadline {_ms(low_ms)}")
    else:
        axes.axvspan(low_ms, high_ms, color=GREY, alpha=0.15, lw=0, label=f"deadlines {low_ms:g}-{high_ms:g} ms")


def _draw_throughput(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="Requests over time", xlabel="time since the start (s)", ylabel="requests per second")
    for run, (colour, dashes) in zip(runs, _LINES, strict=False):
        curve, prefix = figures.over_time(run.requests, run.planned), _prefix(run, runs)
        if len(runs) == 1:
            axes.plot(curve.middles_s, curve.offered_per_s, color=GREY, linestyle=":", label="offered")
        axes.plot(curve.middles_s, curve.answered_per_s, color=colour, linestyle=dashes, label=f"{prefix}answered")
        if len(runs) == 1 and curve.rejected_per_s.any():
            axes.plot(curve.middles_s, curve.rejected_per_s, color=RED, linestyle="-.", label="rejected")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _legend_above(axes)


def _draw_attainment(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="Answered in time", xlabel="scheduled time since the start (s)", ylabel="share of planned requests")
    for run, (colour, dashes) in zip(runs, _LINES, strict=False):
        curve = figures.over_time(run.requests, run.planned)
        there = ~np.isnan(curve.attainment)
        label = run.name if len(runs) > 1 else None
        axes.plot(curve.middles_s[there], curve.attainment[there], color=colour, linestyle=dashes, label=label)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if len(runs) > 1:
        _legend_above(axes)


def _draw_levels(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="Levels and accuracy", xlabel="scheduled time since the start (s)", ylabel="share of answers")
    drawn = False
    for run, (colour, dashes) in zip(runs, _LINES, strict=False):
        curve, prefix = figures.over_time(run.requests, run.planned), _prefix(run, runs)
        for values, marker, label in ((curve.below_full, "", "below full"), (curve.accuracy, ".", "right")):
            there = ~np.isnan(values)
            if there.any():
                points = curve.middles_s[there], values[there]
                axes.plot(*points, color=colour, linestyle=dashes, marker=marker, label=f"{prefix}{label}")
                drawn = True
    if not drawn:
        _say_nothing(axes, "no ladder answered, and no label is known")
        return
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _legend_above(axes)


def _draw_fairness(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="Each tenant's attainment", xlabel="share of tenants, worst first", ylabel="answered in time")
    for run, (colour, dashes) in zip(runs, _LINES, strict=False):
        values = np.sort(np.array(list(figures.attainment_by_tenant(run.requests, run.planned).values())))
        if len(values):
            ranks = np.append(np.arange(len(values)) / len(values), 1.0)
            label = f"{_prefix(run, runs)}{len(values):,} tenants, {values[0]:.0%} to {values[-1]:.0%}"
            axes.step(ranks, np.append(values, values[-1]), where="post", color=colour, linestyle=dashes, label=label)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(0, 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    _legend(axes, loc="lower right")


def _draw_reasons(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="Rejected and failed, by reason", xlabel="requests")
    counts = [_reason_counts(run.requests) for run in runs]
    most_of = {reason: max(count.get(reason, 0) for count in counts) for count in counts for reason in count}
    reasons = sorted(most_of, key=lambda reason: most_of[reason])[-_MOST_BARS:]
    if not reasons:
        _say_nothing(axes, "nothing was rejected, nothing failed")
        return
    height = 0.8 / len(runs)
    for number, (run, count, (colour, _)) in enumerate(zip(runs, counts, _LINES, strict=False)):
        heights = np.arange(len(reasons)) - number * height + 0.4 - height / 2
        bars = axes.barh(heights, [count.get(reason, 0) for reason in reasons], height, color=colour, label=run.name)
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set_yticks(range(len(reasons)), [_shortened(reason) for reason in reasons], fontsize=8)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.15)
    if len(runs) > 1:
        _legend(axes, loc="lower right")


def _draw_batches(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="Batches of the upper model", xlabel="rows that Triton handed over at once", ylabel="share of rows")
    known = [(run, run.batches, colour) for run, (colour, _) in zip(runs, _LINES, strict=False) if run.batches]
    if not known:
        _say_nothing(axes, "the server did not say")
        return
    width = 0.8 / len(known)
    for number, (run, batches, colour) in enumerate(known):
        centres = np.array(list(batches)) + (number + 0.5) * width - 0.4
        axes.bar(centres, list(batches.values()), width, color=colour, label=run.name)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="x", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(runs) > 1:
        _legend(axes, loc="upper right")


def _draw_sending(axes: Axes, runs: Sequence[Shown]) -> None:
    axes.set(title="How late requests were sent", xlabel="behind schedule (ms, log scale)", ylabel="share of requests")
    drawn = False
    for run, (colour, dashes) in zip(runs, _LINES, strict=False):
        late_ms = 1000 * (run.requests.sent_s - run.requests.scheduled_s)
        if len(late_ms):
            label = f"{_prefix(run, runs)}p99 {_ms(float(np.percentile(late_ms, 99)))}"
            axes.plot(*_cdf(np.maximum(late_ms, 0.01)), color=colour, linestyle=dashes, label=label)
            drawn = True
    if drawn:
        limit_ms = runs[0].lateness_limit_ms
        axes.axvline(limit_ms, color=GREY, linestyle=":", label=f"limit of p99 {_ms(limit_ms)}")
    _finish_cdf(axes, drawn, "nothing was sent")


def _finish_cdf(axes: Axes, drawn: bool, otherwise: str) -> None:
    if not drawn:
        _say_nothing(axes, otherwise)
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axes.get_xlim()
    if high / low < 50:
        axes.xaxis.set_minor_formatter(FuncFormatter(_minor_tick))
    else:
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", labelsize=8)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _legend(axes, loc="upper left")


def _minor_tick(value: float, _: int) -> str:
    digit = round(value / 10 ** np.floor(np.log10(value)))
    return f"{value:g}" if digit in (2, 5) else ""


def _cdf(values: Column) -> tuple[Column, Column]:
    """Points of the cumulative distribution, no more than a picture can show, the ends among them."""
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_POINTS)).round().astype(int))
    return ordered[ranks], (ranks + 1) / len(ordered)


def _reason_counts(requests: Requests) -> dict[str, int]:
    reasons, counts = np.unique(requests.reasons[~requests.answered], return_counts=True)
    return dict(zip(reasons.tolist(), counts.tolist(), strict=True))


def _say_nothing(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", va="center", color=GREY, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def _legend(axes: Axes, loc: Corner) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=loc, fontsize=8.5)


def _legend_above(axes: Axes) -> None:
    """Put the legend above the axes, where no curve can run through it."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=8.5, borderaxespad=0.2)


def _prefix(run: Shown, runs: Sequence[Shown]) -> str:
    return f"{run.name}: " if len(runs) > 1 else ""


def _shortened(reason: str) -> str:
    """Break a long name into two lines."""
    if len(reason) <= _LONGEST_LABEL:
        return reason
    cut = reason.rfind(" ", 0, _LONGEST_LABEL) if " " in reason[:_LONGEST_LABEL] else _LONGEST_LABEL
    rest = reason[cut:].strip()
    return f"{reason[:cut]}\n{rest if len(rest) <= _LONGEST_LABEL else rest[: _LONGEST_LABEL - 1] + '…'}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"
