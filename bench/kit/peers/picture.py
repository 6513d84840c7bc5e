"""The rates of `bench.peers`: a panel for each load, a bar for each way to serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.kit.peers.turns import Cell
from loadtest.pictures import BLUE, GREY

_PANELS_ACROSS = 4


def draw_peers(rates: Mapping[Cell, Sequence[float]], path: Path) -> None:
    """Bars are medians over the turns, whiskers the least and the most."""
    loads = sorted({cell[1:] for cell in rates}, key=lambda load: (load[1], -len(load[0]), load[0]))
    across = min(_PANELS_ACROSS, len(loads))
    down = -(-len(loads) // across)
    # The same file for the same numbers.
    with mpl.rc_context({"svg.hashsalt": "hplm"}):
        figure = Figure(figsize=(4.2 * across, 2.6 * down), layout="constrained")
        all_axes = figure.subplots(down, across, squeeze=False).flat
        for axes, load in zip(all_axes, loads, strict=False):
            of_load = {cell[0]: own for cell, own in rates.items() if cell[1:] == load}
            ways = sorted(of_load, key=lambda way: median(of_load[way]))
            middles = [median(of_load[way]) for way in ways]
            below = [middle - min(of_load[way]) for way, middle in zip(ways, middles, strict=True)]
            above = [max(of_load[way]) - middle for way, middle in zip(ways, middles, strict=True)]
            colours = [BLUE if way.startswith("ours") else GREY for way in ways]
            bars = axes.barh(ways, middles, color=colours, xerr=(below, above), ecolor="black")
            axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=7)
            axes.margins(x=0.15)
            axes.set_title(_title(*load), fontsize=9)
            axes.tick_params(labelsize=8)
            axes.grid(axis="x", alpha=0.3)
        for axes in list(figure.axes)[len(loads) :]:
            axes.set_axis_off()
        figure.supxlabel("rows per second", fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _title(lengths: str, tenants: int) -> str:
    shown = "real lengths" if lengths == "real" else f"{lengths.partition(',')[0]} tokens{lengths.partition(',')[1]}"
    return f"{shown}{lengths.partition(',')[2]}, {tenants:,} tenant{'s' if tenants > 1 else ''}"
