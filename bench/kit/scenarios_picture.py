"""The response times of `bench.scenarios`: a distribution for each scheme, the scenarios side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray

from loadtest.pictures import BLUE, GREY, RED

_SHARES = np.linspace(0.0, 1.0, 601)
_LINES = {"hplm": (BLUE, "-", "hPLMs"), "dedicated": (RED, "--", "dedicated models")}


def draw_scenarios(curves: Mapping[tuple[str, str], NDArray[np.float64]], timeout_s: float, path: Path) -> None:
    """`curves` are seconds by scenario and scheme; what was not answered lies at the timeout."""
    scenarios = list(dict.fromkeys(scenario for scenario, _ in curves))
    figure = Figure(figsize=(5.2 * len(scenarios), 3.8), layout="constrained")
    all_axes = figure.subplots(1, len(scenarios), sharey=True, squeeze=False)[0]
    for axes, scenario in zip(all_axes, scenarios, strict=True):
        for (of, scheme), response_s in curves.items():
            if of == scenario:
                colour, dashes, name = _LINES[scheme]
                least = "≥ " if response_s.max() >= timeout_s else ""
                label = f"{name}, mean {least}{_time(float(response_s.mean()))}"
                axes.plot(1e3 * np.quantile(response_s, _SHARES), _SHARES, color=colour, linestyle=dashes, label=label)
        if max(response_s.max() for (of, _), response_s in curves.items() if of == scenario) >= timeout_s:
            axes.axvline(1e3 * timeout_s, color=GREY, linestyle=":", label=f"given up after {timeout_s:g} s")
        axes.set(title=scenario, xscale="log", xlabel="from scheduled time to answer (ms, log scale)", ylim=(0, 1.02))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), frameon=False, fontsize=8.5)
    all_axes[0].set_ylabel("share of requests")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _time(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{1e3 * seconds:,.3g} ms"
