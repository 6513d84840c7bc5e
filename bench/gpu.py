"""What does the engine make of a GPU: rows a second for 10,000 tenants, bare and in Triton and as a share of its peak?

The share is that of the time which the same multiply-adds take at the measured peak of the matrix product. Without a
GPU the same runs in a small size on the CPU, and the report's `device` says so.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from statistics import median
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from backends.engine.precision import Products, missing_for
from backends.engine.stack import StackSettings
from bench.kit.bare import HomeEngine, interleaved, median_ratio, multiply_adds
from bench.kit.client_processes import ClientProcesses
from bench.kit.entry import QUICK_LOADS_S, Result, bench
from bench.kit.peak import peak_seconds, square_products
from bench.kit.random_root import random_rows
from bench.kit.saturation import draw
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, ROOT, SMALL, TenantHome, tenant_home
from loadtest.in_process import Played

_LENGTHS = (128, 20)
_TERA = 1e12
_EDGE = 0.1
"""The share of a run's answers, at either end, that does not count: not all clients begin and end at once."""


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
    client_processes: int = 1

    @property
    def kind(self) -> Literal["cpu", "gpu"]:
        return "gpu" if self.device == "cuda" else "cpu"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda" if self.kind == "gpu" else "cpu")


GPU = Settings(
    device="cuda",
    geometry="BERT-base, 6 of 12 x 768 above PLOT",
    tenants=10_000,
    rows=10_000,
    slots=256,
    bare_batches=50,
    lower_instances=8,
    client_processes=4,
    repeats=3,
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


def measure_bare(home: TenantHome, settings: Settings, seed: int) -> Iterator[dict[str, Any]]:
    """Measure every dtype of the device, with every row of a batch another tenant's."""
    generator = torch.Generator().manual_seed(seed)
    engines = {dtype: _engine(home, settings, dtype) for dtype in _dtypes(settings)}
    geometry = engines[settings.dtype].geometry
    for length in _LENGTHS:
        lengths = [length] * settings.batch
        rates, peaks = _in_turns(engines, random_rows(lengths, geometry.hidden_size, generator), settings)
        work = multiply_adds(geometry, lengths) / settings.batch
        for dtype, of_dtype in rates.items():
            yield {
                "way": "bare",
                "dtype": dtype,
                "tokens": length,
                "rows per s": median(of_dtype),
                f"over {settings.dtype}": median_ratio(of_dtype, rates[settings.dtype]),
                "of the peak": median(rate * work / peak for rate, peak in zip(of_dtype, peaks, strict=True)),
                "peak TFLOP/s": 2 * median(peaks) / _TERA,
            }


def _dtypes(settings: Settings) -> list[str]:
    quantised: tuple[Products, ...] = get_args(Products)
    return [settings.dtype, *(dtype for dtype in quantised if missing_for(dtype, settings.torch_device) is None)]


def _engine(home: TenantHome, settings: Settings, dtype: str) -> HomeEngine:
    stack = StackSettings(device=str(settings.torch_device), dtype=dtype, num_slots=settings.batch + 1)
    return HomeEngine(home.home, ROOT, home.hplms[: settings.batch], stack)


def _in_turns(
    engines: Mapping[str, HomeEngine], rows: Sequence[Tensor], settings: Settings
) -> tuple[dict[str, list[float]], list[float]]:
    """Return the rows a second of each engine, and the peak's multiply-adds a second, in every repeat."""
    squares = square_products(settings.torch_device)
    rates: dict[str, list[float]] = {dtype: [] for dtype in engines}
    peaks = []
    for repeat in range(settings.repeats + 1):
        for dtype, engine in engines.items():
            rate = engine.rows_per_s(rows, settings.bare_batches)
            if repeat:
                rates[dtype].append(rate)
        if repeat:
            seconds = interleaved({name: products.run for name, products in squares.items()}, 1)
            peaks.append(1 / peak_seconds(seconds, squares)[0])
    return rates, peaks


def measure_served(home: TenantHome, settings: Settings, seed: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    for way, slots in (("Triton, swapping", settings.slots), ("Triton, all on the device", settings.tenants)):
        upper = {"dtype": settings.dtype, "slots": str(slots + 1), "max_rows": str(settings.batch)}
        serving = Serving(lower_instances=settings.lower_instances, upper=upper, device=settings.kind)
        with served(home.home, serving) as server, ClientProcesses(settings.client_processes) as clients:
            for length, texts in home.texts.items():
                # Every tenant once, so that all adapters have been read, and lie on the device where they have room.
                clients.saturate(server.grpc_url, [(hplm, texts[0]) for hplm in home.hplms], 4 * settings.batch)
                runs = [
                    clients.saturate(server.grpc_url, draw(home.hplms, texts, settings.rows, rng), 4 * settings.batch)
                    for _ in range(settings.repeats)
                ]
                yield {"way": way, "dtype": settings.dtype, "tokens": length, **_middle(runs, settings)}


def _middle(runs: Sequence[Played], settings: Settings) -> dict[str, float]:
    edge_rows = max(settings.batch // 2, int(_EDGE * settings.rows))
    return {
        "rows per s": median(played.rows_per_s(edge_rows) for played in runs),
        "p50 ms": median(played.latency_ms(50) for played in runs),
        "p99 ms": median(played.latency_ms(99) for played in runs),
        "client cores": median(played.client_cores for played in runs),
    }


def figures(rows: Sequence[dict[str, Any]], dtype: str) -> dict[str, float]:
    by_cell = {(row["way"], row["dtype"], row["tokens"]): row for row in rows}
    values: dict[str, float] = {}
    for length, suffix in zip(_LENGTHS, ("", "_short"), strict=True):
        bare, swapping = by_cell["bare", dtype, length], by_cell["Triton, swapping", dtype, length]
        resident = by_cell["Triton, all on the device", dtype, length]
        values[f"bare_rows_per_s{suffix}"] = bare["rows per s"]
        values[f"bare_over_peak{suffix}"] = bare["of the peak"]
        for (way, quantised, tokens), row in by_cell.items():
            if (way, tokens) == ("bare", length) and quantised != dtype:
                values[f"{quantised}_over_{dtype}{suffix}"] = row[f"over {dtype}"]
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
        rows = []
        for row in chain(measure_bare(home, settings, options.seed), measure_served(home, settings, options.seed)):
            print(row, file=sys.stderr)
            rows.append(row)
    return Result(asdict(settings), figures(rows, settings.dtype), rows)


if __name__ == "__main__":
    gpu.main()
