"""Does the planner do what AlpaServe's does, and how near is it to the best placement there is?

All of it is simulated by the fast group simulation, without batches: AlpaServe's Table 2 and its ablation; a grid of
bursty traffic on devices that hold one and a half roots, fixed before the planner was written; with `--trace` the same
for a recorded trace, played faster; small cases against the best of all placements; and a large fleet with a million
tenants, for which all is timed that `hplm place` does with a traffic that it has read. On the grid, the trace and in
the ablation placements are made for one traffic and judged by another of the same kind: of the trace for every second
day, and by the others. The quick size plans a smaller fleet, and multiplies.

`rate_over_replication_99` and `devices_saved_99` are the lesser of grid and trace.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.placing.grid import GridSettings, grid_figures, grid_rows
from bench.kit.placing.large_fleet import FleetSettings, fleet_figures, fleet_row
from bench.kit.placing.loads_by_rate import GammaLoad, LoadByRate, RecordedTrace, TraceLoad
from bench.kit.placing.mixed_models import MixedSettings, mixed_figures, mixed_row
from bench.kit.placing.published import PublishedSettings, published_figures, published_rows
from bench.kit.placing.small_cases import small_figures, small_rows


@dataclass(frozen=True)
class Settings:
    """How much of each part is played.

    Attributes:
        roots: Of the grid; each number with equal shares and with uneven ones.
        requests: Of each of its traffics.
        traced_roots: How many of the trace's base models are placed, the busiest.
    """

    published: PublishedSettings
    grid: GridSettings
    roots: tuple[int, ...]
    requests: int
    traced_roots: tuple[int, ...]
    small_cases: int
    small_requests: int
    fleet: FleetSettings
    mixed: MixedSettings = field(default_factory=MixedSettings)
    exponents: tuple[float, ...] = (0.0, 0.5)
    cv: float = 4.0


FULL = Settings(PublishedSettings(10), GridSettings(8, 48), (8, 16), 20_000, (16, 32), 60, 3_000, FleetSettings(1_000))
QUICK = Settings(
    PublishedSettings(2),
    GridSettings(5, 24),
    (8,),
    6_000,
    (8,),
    12,
    1_500,
    FleetSettings(128),
)


_WORSE_IF_LARGER = ("replication_nowhere_share", "held_out_loss_points")


def rows_of(part: str, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"part": part, **row} for row in rows]


def both_figures(grid: Sequence[Mapping[str, Any]], traced: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of the grid, and where there is a trace each one's beside the worse of both."""
    of_grid = grid_figures(grid)
    if not traced:
        return of_grid
    of_trace = grid_figures(traced)
    worse = {
        name: max(value, of_trace[name]) if name in _WORSE_IF_LARGER else min(value, of_trace[name])
        for name, value in of_grid.items()
    }
    by_name = {f"{name}_{part}": each[name] for part, each in (("grid", of_grid), ("trace", of_trace)) for name in each}
    return {**worse, **by_name}


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--trace", type=Path, help="a recorded trace: CSV with the columns time and base_model")


@bench(
    "placement",
    quick_s=QUICK_LOADS_S,
    add_options=add_options,
    bars={
        "replication_points_apart": at_most(3),
        "alpaserve_points_outside": at_most(1.2),
        "rate_over_replication_99": at_least(1.5),
        "devices_saved_99": at_least(1.5),
        "plan_over_optimum": at_least(0.98),
        "fast_over_full": at_least(0.98),
        "plan_over_round_robin": at_least(1.05),
        "held_out_loss_points": at_most(2),
        "plan_s_1000_gpus": at_most(600),
        "plan_peak_gb": at_most(4),
    },
)
def placement(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    loads, traced_loads = _grid(settings, options.seed), _traced(settings, options.trace)
    published = published_rows(settings.published, options.seed)
    small = small_rows(settings.small_cases, settings.small_requests, options.seed)
    grid, traced = grid_rows(loads, settings.grid), grid_rows(traced_loads, settings.grid)
    mixed = mixed_row(settings.mixed, options.seed)
    fleet = fleet_row(settings.fleet, options.seed)
    figures = {
        **published_figures(published),
        **both_figures(grid, traced),
        **small_figures(small),
        **mixed_figures(mixed),
        **fleet_figures(fleet),
    }
    rows = [*rows_of("Table 2", [*published]), *rows_of("grid", [*grid, *traced]), *rows_of("small", [*small])]
    rows += [*rows_of("ablation", [mixed]), *rows_of("fleet", [fleet])]
    return Result({**asdict(settings), "trace": options.trace is not None}, figures, rows)


def _grid(settings: Settings, seed: int) -> list[LoadByRate]:
    return [
        GammaLoad(roots, exponent, settings.cv, settings.requests, seed)
        for roots in settings.roots
        for exponent in settings.exponents
    ]


def _traced(settings: Settings, path: Path | None) -> list[LoadByRate]:
    if path is None:
        return []
    trace = RecordedTrace.read(path)
    return [TraceLoad(trace.of_busiest(roots), roots) for roots in settings.traced_roots]


if __name__ == "__main__":
    placement.main()
