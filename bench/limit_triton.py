"""How much of the bare engine's throughput is left once clients, gRPC, Triton and the lower half come on top?

The bare engine packs and runs 64 rows again and again in this process; then clients of the real Triton, on the same
cores, keep 128 rows under way, one a request. Both by turns, on the same weights, hPLMs and dtype; the server may leave
a thread out while that is faster.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from backends.engine.stack import StackSettings
from bench.kit.bare import HomeEngine
from bench.kit.entry import Result, at_least, bench
from bench.kit.random_root import random_rows
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, ROOT, TenantHome, tenant_home

_LENGTHS = {128: "", 20: "_short"}


@dataclass(frozen=True)
class Settings:
    rows: int
    short_rows: int
    bare_batches: int
    repeats: int
    geometry: str = "BERT-base, 6 of 12 x 768 above PLOT"
    batch: int = 64
    tenants: int = 16
    texts: int = 128
    dtype: str = "bf16"

    def rows_of(self, length: int) -> int:
        return self.rows if length == max(_LENGTHS) else self.short_rows


FULL = Settings(rows=512, short_rows=2_048, bare_batches=6, repeats=5)
QUICK = Settings(rows=192, short_rows=384, bare_batches=1, repeats=1)


def measure(home: TenantHome, settings: Settings, seed: int) -> list[dict[str, Any]]:
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    stack = StackSettings(dtype=settings.dtype, num_slots=settings.tenants + 1)
    bare = HomeEngine(home.home, ROOT, home.hplms, stack)
    rows_of = {
        length: random_rows([length] * settings.batch, bare.geometry.hidden_size, generator) for length in _LENGTHS
    }
    results = []
    with served(home.home, Serving(upper={"dtype": settings.dtype})) as server:
        for texts in home.texts.values():  # nothing is in memory yet
            saturate(server.grpc_url, draw(home.hplms, texts, settings.batch, rng), settings.batch)
        for _ in range(settings.repeats):
            for length in _LENGTHS:
                bare_rows_per_s = bare.rows_per_s(rows_of[length], settings.bare_batches)
                rows = draw(home.hplms, home.texts[length], settings.rows_of(length), rng)
                played = saturate(server.grpc_url, rows, 2 * settings.batch)
                rows_per_s = played.rows_per_s(settings.batch)
                results.append(
                    {
                        "tokens": length,
                        "bare rows per s": bare_rows_per_s,
                        "Triton rows per s": rows_per_s,
                        "Triton over bare": rows_per_s / bare_rows_per_s,
                        "client cores": played.client_cores,
                    }
                )
    return results


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    def middle(length: int, name: str) -> float:
        return float(median(row[name] for row in rows if row["tokens"] == length))

    cores = torch.get_num_threads()
    return {
        **{f"triton_over_bare{suffix}": middle(length, "Triton over bare") for length, suffix in _LENGTHS.items()},
        **{f"client_share{suffix}": middle(length, "client cores") / cores for length, suffix in _LENGTHS.items()},
    }


@bench("limit_triton", bars={"triton_over_bare": at_least(0.85), "triton_over_bare_short": at_least(0.6)})
def limit_triton(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with tenant_home(BERT_BASE, settings.tenants, _LENGTHS, options.seed, settings.texts) as home:
        rows = measure(home, settings, options.seed)
    return Result(asdict(settings), figures(rows), rows)


if __name__ == "__main__":
    limit_triton.main()
