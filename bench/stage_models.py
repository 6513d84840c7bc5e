"""What does a step between two stages cost: between threads of one process, and between two Triton models?

Three servers on one home, asked in turns: whole layers on all threads; two stages of one process, a core each; and two
stages that are models. Each is kept full by single-row requests of many tenants, and then asked one row at a time. The
clients share the cores. `step_us` is what a row takes more in stages that are models than in stages of one process, on
a server that is kept full; `alone_ms` what it waits more when it is alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from backends.root.geometry import RootGeometry
from bench.kit.entry import Result, bench
from bench.kit.progress import one_by_one
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, all_served
from bench.kit.synthetic_home import BERT_BASE, MIDDLE, TenantHome, tenant_home
from builder.serving import TritonServer

WHOLE, THREADS, MODELS = "whole", "threads", "models"
_LENGTHS = {128: "", 20: "_short"}


@dataclass(frozen=True)
class Settings:
    rows: int
    short_rows: int
    alone_rows: int
    turns: int
    batch: int = 64
    tenants: int = 200
    dtype: str = "bf16"

    def rows_of(self, length: int) -> int:
        return self.rows if length == max(_LENGTHS) else self.short_rows


FULL = Settings(rows=320, short_rows=1_024, alone_rows=30, turns=5)
QUICK = Settings(rows=320, short_rows=640, alone_rows=10, turns=1)


def servings(dtype: str) -> dict[str, Serving]:
    whole, cut = {"dtype": dtype}, {"dtype": dtype, "stages": "2"}
    return {
        WHOLE: Serving(WHOLE, upper=whole),
        THREADS: Serving(THREADS, upper=cut),
        MODELS: Serving(MODELS, upper=cut, stage_models=True),
    }


def measure(
    home: TenantHome, servers: Mapping[str, TritonServer], settings: Settings, seed: int
) -> list[dict[str, Any]]:
    rng, ways = np.random.default_rng(seed), list(servers)
    for server in servers.values():
        for texts in home.texts.values():  # nothing is in memory yet
            saturate(server.grpc_url, draw(home.hplms, texts, 2 * settings.batch, rng), settings.batch)
    results = []
    turns = [(turn, length) for turn in range(settings.turns) for length in _LENGTHS]
    for turn, length in one_by_one(turns, "stage_models", "turns"):
        full = draw(home.hplms, home.texts[length], settings.rows_of(length), rng)
        alone = draw(home.hplms, home.texts[length], settings.alone_rows, rng)
        first = turn % len(ways)
        for way in (*ways[first:], *ways[:first]):
            server = servers[way]
            played = saturate(server.grpc_url, full, 2 * settings.batch)
            results.append(
                {
                    "tokens": length,
                    "turn": turn,
                    "way": way,
                    "rows a second": played.rows_per_s(settings.batch),
                    "client cores": played.client_cores,
                    "alone ms": saturate(server.grpc_url, alone, 1).latency_ms(50),
                }
            )
    return results


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for length, suffix in _LENGTHS.items():
        of = {way: [row for row in rows if (row["tokens"], row["way"]) == (length, way)] for way in servings("")}
        rates = {way: [row["rows a second"] for row in found] for way, found in of.items()}
        alone = {way: median(row["alone ms"] for row in found) for way, found in of.items()}
        pairs = list(zip(rates[MODELS], rates[THREADS], strict=True))
        values[f"models_over_threads{suffix}"] = median(models / threads for models, threads in pairs)
        for way in (THREADS, MODELS):
            shares = zip(rates[way], rates[WHOLE], strict=True)
            values[f"{way}_over_whole{suffix}"] = median(cut / whole for cut, whole in shares)
        values[f"step_us{suffix}"] = median(1e6 / models - 1e6 / threads for models, threads in pairs)
        values[f"alone_ms{suffix}"] = alone[MODELS] - alone[THREADS]
    return values


@bench("stage_models")
def stage_models(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    geometry: RootGeometry = MIDDLE if options.quick else BERT_BASE
    with (
        tenant_home(geometry, settings.tenants, _LENGTHS, options.seed) as home,
        all_served(home.home, servings(settings.dtype)) as servers,
    ):
        rows = measure(home, servers, settings, options.seed)
    return Result(asdict(settings), figures(rows), rows)


if __name__ == "__main__":
    stage_models.main()
