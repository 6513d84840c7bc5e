"""The share of a corpus that its most frequent fragments cover, drawn over theta."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from backends.errors import InvalidArgumentError
from backends.plot.counts import FragmentCounts
from backends.storage import disk_full_is_an_error
from builder.construct.domain.coverage import coverage_curve

FORMATS = (".svg", ".png", ".pdf")


def draw_coverage(corpora: Mapping[str, FragmentCounts], chosen_theta: float | None, path: Path) -> None:
    """One curve per corpus, theta on a logarithmic axis, the chosen theta marked."""
    if path.suffix not in FORMATS:
        raise InvalidArgumentError(f"{path} does not end in one of {', '.join(FORMATS)}")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, counts in corpora.items():
        axes.plot(*coverage_curve(counts), label=name)
    if chosen_theta is not None:
        axes.axvline(chosen_theta, color="grey", linestyle="--", label=f"θ = {chosen_theta:g}")
    axes.set(xscale="log", ylim=(0, 1), xlabel="θ: share of the distinct fragments", ylabel="share of the occurrences")
    axes.grid(alpha=0.3)
    axes.legend()
    # Without its date a picture of the same counts is the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with disk_full_is_an_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata=metadata)
