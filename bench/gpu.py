"""What does the engine make of a GPU: rows a second for 10,000 tenants, bare and in Triton and as a share of its peak?

The share is that of the time which the same multiply-adds take at the measured peak of the matrix product. Without a
GPU the same runs in a small size on the CPU, and the report's `device` says so.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
import torch

from backends.engine.stack import StackSettings
from bench.kit.bare import HomeEngine, interleaved, multiply_adds
from bench.kit.entry import QUICK_LOADS_S, Result, bench
from bench.kit.peak import peak_seconds, square_products
from bench.kit.random_root import random_rows
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, ROOT, SMALL, TenantHome, tenant_home

_LENGTHS = (128, 20)
_TERA = 1e12


@dataclass(frozen=True)
class Settings:
    """`slots` are those of the swapping server; a second one keeps all tenants' adapters on the device."""

    device: str
    geometry: str
    tenants: int
    rows: int
    slots: int
    bare_batches: int
    batch: int = 64
    repeats: int = 5
    texts: int = 128
    dtype: str = "bf16"
    lower_instances: int = 1

    @property
    def kind(self) -> Literal["cpu", "gpu"]:
        return "gpu" if self.device == "cuda" else "cpu"


GPU = Settings(
    device="cuda",
    geometry="BERT-base, 6 of 12 x 768 above PLOT",
    tenants=10_000,
    rows=20_000,
    slots=256,
    bare_batches=50,
    lower_instances=8,
)
CPU = Settings(
    device="cpu (no GPU here; small sizes)",
    geometry="small, 6 of 12 x 256 above PLOT",
    tenants=500,
    rows=192,
    slots=128,
    bare_batches=4,
    repeats=3,
)


def measure_bare(home: TenantHome, settings: Settings, seed: int) -> list[dict[str, Any]]:
    """Every row of a batch another tenant's."""
    device, generator = torch.device("cuda" if settings is GPU else "cpu"), torch.Generator().manual_seed(seed)
    stack = StackSettings(device=str(device), dtype=settings.dtype, num_slots=settings.batch + 1)
    engine = HomeEngine(home.home, ROOT, home.hplms[: settings.batch], stack)
    squares = square_products(device)
    rows = []
    for length in _LENGTHS:
        lengths = [length] * settings.batch
        waiting = random_rows(lengths, engine.geometry.hidden_size, generator)
        work = multiply_adds(engine.geometry, lengths)
        engine.rows_per_s(waiting, settings.bare_batches)
        rates, peaks = [], []
        for _ in range(settings.repeats):
            rates.append(engine.rows_per_s(waiting, settings.bare_batches))
            seconds = interleaved({name: products.run for name, products in squares.items()}, 1)
            peaks.append(1 / peak_seconds(seconds, squares)[0])
        shares = [rate * work / settings.batch / peak for rate, peak in zip(rates, peaks, strict=True)]
        rows.append(
            {
                "way": "bare",
                "tokens": length,
                "rows per s": median(rates),
                "of the peak": median(shares),
                "peak TFLOP/s": 2 * median(peaks) / _TERA,
            }
        )
    return rows


def measure_served(home: TenantHome, settings: Settings, seed: int) -> list[dict[str, Any]]:
    rng, rows = np.random.default_rng(seed), []
    for way, slots in (("Triton, swapping", settings.slots), ("Triton, all on the device", settings.tenants)):
        upper = {"dtype": settings.dtype, "slots": str(slots + 1), "max_rows": str(settings.batch)}
        serving = Serving(lower_instances=settings.lower_instances, upper=upper, device=settings.kind)
        with served(home.home, serving) as server:
            for length in _LENGTHS:
                runs = [
                    saturate(
                        server.grpc_url,
                        draw(home.hplms, home.texts[length], settings.rows, rng),
                        4 * settings.batch,
                    )
                    for _ in range(settings.repeats + 1)
                ][1:]
                rows.append(
                    {
                        "way": way,
                        "tokens": length,
                        "rows per s": median(taken.rows_per_s(settings.batch) for taken in runs),
                        "p50 ms": median(taken.latency_ms(50) for taken in runs),
                        "p99 ms": median(taken.latency_ms(99) for taken in runs),
                        "client cores": median(taken.client_cores for taken in runs),
                    }
                )
    return rows


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    by_cell = {(row["way"], row["tokens"]): row for row in rows}
    values: dict[str, float] = {}
    for length, suffix in zip(_LENGTHS, ("", "_short"), strict=True):
        bare, swapping = by_cell["bare", length], by_cell["Triton, swapping", length]
        resident = by_cell["Triton, all on the device", length]
        values[f"bare_rows_per_s{suffix}"] = bare["rows per s"]
        values[f"bare_over_peak{suffix}"] = bare["of the peak"]
        values[f"triton_rows_per_s{suffix}"] = swapping["rows per s"]
        values[f"triton_p99_ms{suffix}"] = swapping["p99 ms"]
        values[f"triton_over_bare{suffix}"] = swapping["rows per s"] / bare["rows per s"]
        values[f"swapping_over_resident{suffix}"] = swapping["rows per s"] / resident["rows per s"]
    return values


@bench("gpu", quick_s=QUICK_LOADS_S)
def gpu(options: Namespace) -> Result:
    settings, geometry = (GPU, BERT_BASE) if torch.cuda.is_available() and not options.quick else (CPU, SMALL)
    if settings is CPU:
        print("no GPU is used: a small size on the CPU", file=sys.stderr)
    with tenant_home(geometry, settings.tenants, _LENGTHS, options.seed, settings.texts) as home:
        rows = measure_bare(home, settings, options.seed)
        rows += measure_served(home, settings, options.seed)
    return Result(asdict(settings), figures(rows), rows)


if __name__ == "__main__":
    gpu.main()
