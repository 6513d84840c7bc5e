"""The size and the use of a domain's table: bytes, and the share of a text's fragments that it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Keys
from backends.plot.counts import FragmentCounts
from backends.plot.header import TableSpec
from backends.plot.store_writer import expected_bytes
from backends.plot.table import Table
from backends.storage import disk_full_is_an_error
from builder.construct.domain.plots import held_by

_POINTS = 200
FORMATS = (".svg", ".png", ".pdf")


def coverage_report(
    counts: FragmentCounts, held_out: FragmentCounts, spec: TableSpec, own: Keys, parents: Sequence[Table]
) -> dict[str, Any]:
    """Shares of the occurrences of whole fragments, in the corpus and in texts that were held out.

    `own` are the fragments in the domain's own table; its chain answers those and what its parents hold.
    """
    return {
        "tokens": counts.num_occurrences,
        "distinct_fragments": counts.num_fragments,
        "own_fragments": len(own),
        "own_table_bytes": expected_bytes(spec, spec.main, len(own)),
        "all_fragments_bytes": expected_bytes(spec, spec.main, counts.num_fragments),
        **_shares("", counts, spec, own, parents),
        **_shares("held_out_", held_out, spec, own, parents),
    }


def coverage_curve(counts: FragmentCounts) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Values of theta, evenly spread on a logarithmic scale, and the share of occurrences that each keeps."""
    ranks = np.unique(np.geomspace(1, max(1, len(counts.keys)), _POINTS).astype(np.int64))
    kept = np.cumsum(counts.counts)[ranks - 1]
    return ranks / counts.num_fragments, kept / counts.num_occurrences


def draw_coverage(corpora: Mapping[str, FragmentCounts], chosen_theta: float | None, path: Path) -> None:
    """One curve per corpus, theta on a logarithmic axis, the chosen theta marked."""
    if path.suffix not in FORMATS:
        raise InvalidArgumentError(f"{path} does not end in one of {', '.join(FORMATS)}")
    from matplotlib.figure import Figure  # takes a second, and most builds draw nothing

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


def _shares(
    prefix: str, counts: FragmentCounts, spec: TableSpec, own: Keys, parents: Sequence[Table]
) -> dict[str, float]:
    in_own = np.isin(counts.keys, own)
    in_chain = in_own | held_by(parents, spec.main, counts.keys)
    occurrences = max(1, counts.num_occurrences)
    return {
        f"{prefix}own_share": round(int(counts.counts[in_own].sum()) / occurrences, 4),
        f"{prefix}chain_share": round(int(counts.counts[in_chain].sum()) / occurrences, 4),
    }
