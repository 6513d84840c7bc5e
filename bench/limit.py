"""How close does the bare engine come to what the same multiply-adds need as plain matrix products?

64 waiting rows, every one of another hPLM, adapters and heads included. The peak is that of the fastest large square
product of the same precision, measured in turn with the engine; the share is the time that the rows' multiply-adds
would take at this peak over the time that they took. On a CPU the threads share a product, or each has one of its own,
as the engine's have: whatever is fastest is the peak. With int8, where a processor multiplies it fast, the peak is that
of products in int8, though attention and adapters stay in bf16. A CPU without instructions for bf16 computes all of
this in fp32 instead, and `int8_over_bf16` is `int8_over_fp32` there. GPUs are measured in bf16 only.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from backends.engine.precision import fast_float_dtype
from backends.root.geometry import RootGeometry
from bench.kit.bare import (
    ROWS,
    BareEngine,
    bare_engine,
    engine_device,
    fast_dtypes,
    interleaved,
    median_ratio,
    multiply_adds,
)
from bench.kit.entry import Result, at_least, bench
from bench.kit.peak import int8_products, peak_seconds, square_products
from bench.kit.random_root import BERT_BASE_UPPER

LENGTHS = {"": 128, "_short": 20}
_FIGURES = {"fp32": "bare_over_peak", "bf16": "bare_over_peak", "int8": "bare_int8_over_peak"}


@dataclass(frozen=True)
class Settings:
    layers: int
    repeats: int
    rows: int = ROWS
    hplms: int = ROWS
    dtypes: tuple[str, ...] = ("bf16", "int8")
    timing: str = "all ways in turn, the median of the ratios within each turn"


FULL = Settings(layers=6, repeats=35)
QUICK = Settings(layers=6, repeats=3)


def measure(engine: BareEngine, settings: Settings) -> tuple[dict[str, float], list[dict[str, object]]]:
    device = engine_device()
    unquantised = fast_float_dtype(device)
    peaks = {unquantised: square_products(device), "int8": int8_products() if "int8" in settings.dtypes else {}}
    stacks = {dtype: engine.stack(dtype=dtype) for dtype in settings.dtypes}
    figures, rows = {}, []
    for suffix, length in LENGTHS.items():
        lengths = [length] * settings.rows
        hidden = engine.rows(lengths)
        work = multiply_adds(engine.geometry, lengths)
        waiting = {dtype: engine.waiting(stack, hidden, settings.hplms) for dtype, stack in stacks.items()}
        ways: dict[str, Callable[[], object]] = {dtype: own.run for dtype, own in waiting.items()}
        for dtype in stacks:
            ways |= {name: products.run for name, products in peaks[dtype].items()}
        seconds = interleaved(ways, settings.repeats)
        for dtype in stacks:
            peak = peak_seconds(seconds, peaks[dtype])
            share = median_ratio([work * each for each in peak], seconds[dtype])
            figures[f"{_FIGURES[dtype]}{suffix}"] = share
            rows.append(
                {
                    "rows × length": f"{settings.rows} × {length}",
                    "dtype": dtype,
                    "share of peak": share,
                    "rows per second": settings.rows / statistics.median(seconds[dtype]),
                    "GFLOP/s": 2 * work / statistics.median(seconds[dtype]) / 1e9,
                    "peak GFLOP/s": 2 / statistics.median(peak) / 1e9,
                }
            )
        if "int8" in stacks:
            figures[f"int8_over_{unquantised}{suffix}"] = median_ratio(seconds[unquantised], seconds["int8"])
    return figures, rows


def geometry_of(layers: int) -> RootGeometry:
    return replace(BERT_BASE_UPPER, num_upper_layers=layers)


@bench(
    "limit",
    bars={
        "bare_over_peak": at_least(0.8),
        "bare_over_peak_short": at_least(0.8),
        "bare_int8_over_peak": at_least(0.65),
        "bare_int8_over_peak_short": at_least(0.5),
        "int8_over_bf16": at_least(1.6),
        "int8_over_bf16_short": at_least(1.45),
    },
)
def limit(options: Namespace) -> Result:
    settings = replace(QUICK if options.quick else FULL, dtypes=fast_dtypes(engine_device()))
    with bare_engine(geometry_of(settings.layers), settings.hplms, options.seed) as engine:
        return Result(asdict(settings), *measure(engine, settings))


if __name__ == "__main__":
    limit.main()
