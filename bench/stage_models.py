"""What does a step between two stages cost: between threads of one process, and between two Triton models?

Three servers on one home, asked in turns: whole layers on all threads; two stages of one process, a core each; and two
stages that are models. Each is kept full by single-row requests of many tenants, of four batches at once, and then
asked one row at a time. The clients share the cores. `step_us` is what a row takes more in stages that are models than
in stages of one process, on a server that is kept full; `alone_ms` what it waits more when it is alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from math import factorial
from statistics import median
from typing import Any

import numpy as np
import torch

from backends.engine.precision import fast_float_dtype
from backends.root.geometry import RootGeometry
from bench.kit.entry import QUICK_LOADS_S, Result, bench
from bench.kit.progress import one_by_one
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, all_served
from bench.kit.synthetic_home import BERT_BASE, MIDDLE, TenantHome, tenant_home
from builder.serving import TritonServer

WAYS = WHOLE, THREADS, MODELS = "whole", "threads", "models"
_LENGTHS = {128: "", 20: "_short"}
_FULL_BATCHES = 4
"""Batches under way: one is computed in each stage, one waits between them, and one is formed."""


@dataclass(frozen=True)
class Settings:
    """How much is asked.

    Attributes:
        batches: Of rows that are measured on a full server, beside those while it fills and drains.
        turns: Each in another order of the servers.
        max_rows: In a batch.
        max_tokens: In a batch.
    """

    batches: int
    alone_rows: int
    turns: int
    max_rows: int = 64
    max_tokens: int = 4_096
    tenants: int = 200
    dtype: str = fast_float_dtype(torch.device("cpu"))

    def batch_of(self, length: int) -> int:
        return min(self.max_rows, self.max_tokens // length)


FULL = Settings(batches=10, alone_rows=40, turns=6)
QUICK = Settings(batches=3, alone_rows=10, turns=1)


def servings(settings: Settings) -> dict[str, Serving]:
    """No batch waits for slots: there are enough for the hPLMs of all that are under way."""
    slots = str(settings.max_rows * (_FULL_BATCHES + 1))
    whole = {"dtype": settings.dtype, "slots": slots, "max_tokens": str(settings.max_tokens)}
    cut = {**whole, "stages": "2"}
    return {
        WHOLE: Serving(WHOLE, upper=whole),
        THREADS: Serving(THREADS, upper=cut),
        MODELS: Serving(MODELS, upper=cut, stage_models=True),
    }


def measure(
    home: TenantHome, servers: Mapping[str, TritonServer], settings: Settings, seed: int
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    for server in servers.values():
        for texts in home.texts.values():  # nothing is in memory yet
            saturate(server.grpc_url, [(hplm, texts[0]) for hplm in home.hplms], settings.max_rows)
    results = []
    turns = [(turn, length) for turn in range(settings.turns) for length in _LENGTHS]
    for turn, length in one_by_one(turns, "stage_models", "turns"):
        in_flight = _FULL_BATCHES * settings.batch_of(length)
        num_rows = 2 * in_flight + settings.batches * settings.batch_of(length)
        full = draw(home.hplms, home.texts[length], num_rows, rng)
        alone = draw(home.hplms, home.texts[length], settings.alone_rows, rng)
        for way in list(permutations(WAYS))[turn % factorial(len(WAYS))]:
            server = servers[way]
            played = saturate(server.grpc_url, full, in_flight)
            results.append(
                {
                    "tokens": length,
                    "turn": turn,
                    "way": way,
                    "rows a second": played.rows_per_s(in_flight),
                    "client cores": played.client_cores,
                    "alone ms": saturate(server.grpc_url, alone, 1).latency_ms(50),
                }
            )
    return results


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for length, suffix in _LENGTHS.items():
        in_turns = sorted((row for row in rows if row["tokens"] == length), key=lambda row: row["turn"])
        of = {way: [row for row in in_turns if row["way"] == way] for way in WAYS}
        rates = {way: [row["rows a second"] for row in found] for way, found in of.items()}
        alone = {way: [row["alone ms"] for row in found] for way, found in of.items()}
        pairs = list(zip(rates[MODELS], rates[THREADS], strict=True))
        values[f"models_over_threads{suffix}"] = median(models / threads for models, threads in pairs)
        for way in (THREADS, MODELS):
            shares = zip(rates[way], rates[WHOLE], strict=True)
            values[f"{way}_over_whole{suffix}"] = median(cut / whole for cut, whole in shares)
        values[f"step_us{suffix}"] = median(1e6 / models - 1e6 / threads for models, threads in pairs)
        waits = zip(alone[MODELS], alone[THREADS], strict=True)
        values[f"alone_ms{suffix}"] = median(models - threads for models, threads in waits)
    return values


@bench("stage_models", quick_s=QUICK_LOADS_S)
def stage_models(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    geometry: RootGeometry = MIDDLE if options.quick else BERT_BASE
    with (
        tenant_home(geometry, settings.tenants, _LENGTHS, options.seed) as home,
        all_served(home.home, servings(settings)) as servers,
    ):
        rows = measure(home, servers, settings, options.seed)
    return Result(asdict(settings), figures(rows), rows)


if __name__ == "__main__":
    stage_models.main()
