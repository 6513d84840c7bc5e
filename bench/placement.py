"""Does the planner do what AlpaServe's does, and how near is it to the best placement there is?

All of it is simulated by the fast group simulation, without batches: AlpaServe's Table 2 and its ablation; a grid of
bursty traffic on devices that hold one and a half roots, fixed before the planner was written; small cases against the
best of all placements; and a large fleet with a million tenants. On the grid and in the ablation placements are made
for one traffic and judged by another of the same kind. The quick size plans a smaller fleet, and multiplies.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.placing.grid import Case, GridSettings, grid_figures, grid_rows
from bench.kit.placing.large_fleet import FleetSettings, fleet_figures, fleet_row
from bench.kit.placing.mixed_models import MixedSettings, mixed_figures, mixed_row
from bench.kit.placing.published import PublishedSettings, published_figures, published_rows
from bench.kit.placing.small_cases import small_figures, small_rows


@dataclass(frozen=True)
class Settings:
    published: PublishedSettings
    grid: GridSettings
    small_cases: int
    small_requests: int
    fleet: FleetSettings
    mixed: MixedSettings = field(default_factory=MixedSettings)


_CASES = tuple(Case(roots, exponent, 4.0) for roots in (8, 16) for exponent in (0.0, 0.5))
FULL = Settings(PublishedSettings(10), GridSettings(_CASES, 20_000, 8, 48), 60, 3_000, FleetSettings(1_000))
QUICK = Settings(
    PublishedSettings(2),
    GridSettings(_CASES[:2], 6_000, 5, 24),
    12,
    1_500,
    FleetSettings(64, families=640, requests_per_cell=8_000),
)


def rows_of(part: str, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"part": part, **row} for row in rows]


@bench(
    "placement",
    quick_s=QUICK_LOADS_S,
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
    published = published_rows(settings.published, options.seed)
    small = small_rows(settings.small_cases, settings.small_requests, options.seed)
    grid = grid_rows(settings.grid, options.seed)
    mixed = mixed_row(settings.mixed, options.seed)
    fleet = fleet_row(settings.fleet, options.seed)
    figures = {
        **published_figures(published),
        **grid_figures(grid),
        **small_figures(small),
        **mixed_figures(mixed),
        **fleet_figures(fleet),
    }
    rows = [*rows_of("Table 2", [*published]), *rows_of("grid", [*grid]), *rows_of("small", [*small])]
    rows += [*rows_of("ablation", [mixed]), *rows_of("fleet", [fleet])]
    return Result(asdict(settings), figures, rows)


if __name__ == "__main__":
    placement.main()
