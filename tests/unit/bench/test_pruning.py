"""The figures of `bench.pruning`."""

from __future__ import annotations

from bench.pruning import figures_of


def pruned(lost: float, saved: float, computed: float) -> dict[str, object]:
    measured = {"points lost": lost, "least saved": saved, "computed tokens": computed, "computed tokens, whole": 0.8}
    return {"measure": "pruning", "after": 2, "layers": 3, **measured}


def ensemble(weight: float, lost: float) -> dict[str, object]:
    return {"measure": "ensemble", "weight": weight, "points lost": lost, "after": 2, "layers": 3}


def test_figures_count_only_what_loses_little() -> None:
    ensembles = [ensemble(weight, -weight) for weight in (0.9, 0.75, 0.5)]
    figures = figures_of([pruned(0.1, 0.02, 0.7), pruned(0.3, 0.1, 0.5), *ensembles], most_points=0.2)
    assert (figures["saved"], figures["computed_tokens"], figures["computed_tokens_whole"]) == (0.02, 0.7, 0.8)
    assert figures["ensemble_points_75"] == 0.75
    assert figures_of([pruned(0.0, -0.1, 0.9), *ensembles], most_points=0.2)["saved"] == 0.0
    assert figures_of([pruned(0.3, 0.1, 0.5), *ensembles], most_points=0.2)["computed_tokens"] == 1.0
