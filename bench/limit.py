"""How close does the bare engine come to what the same multiply-adds need as plain matrix products?

64 waiting rows, every one of another hPLM, adapters and heads included. The peak is that of the fastest large square
product of the same precision, measured in turn with the engine; the share is the time that the rows' multiply-adds
would take at this peak over the time that they took. On a CPU the threads share a product, or each has one of its own,
as the engine's have: whatever is fastest is the peak.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from dataclasses import asdict, dataclass, replace

import torch

from backends.root.geometry import RootGeometry
from bench.kit.bare import ROWS, BareEngine, bare_engine, interleaved, median_ratio, multiply_adds
from bench.kit.entry import Result, at_least, bench
from bench.kit.peak import peak_seconds, square_products
from bench.kit.random_root import BERT_BASE_UPPER

LENGTHS = {"bare_over_peak": 128, "bare_over_peak_short": 20}


@dataclass(frozen=True)
class Settings:
    layers: int
    repeats: int
    rows: int = ROWS
    hplms: int = ROWS
    dtype: str = "bf16"
    timing: str = "all ways in turn, the median of the ratios within each turn"


FULL = Settings(layers=6, repeats=35)
QUICK = Settings(layers=6, repeats=3)


def measure(engine: BareEngine, settings: Settings) -> tuple[dict[str, float], list[dict[str, object]]]:
    stack = engine.stack(dtype=settings.dtype)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures, rows = {}, []
    for figure, length in LENGTHS.items():
        lengths = [length] * settings.rows
        waiting = engine.waiting(stack, engine.rows(lengths), settings.hplms)
        work = multiply_adds(engine.geometry, lengths)
        squares = square_products(device)
        ways = {"engine": waiting.run, **{name: products.run for name, products in squares.items()}}
        seconds = interleaved(ways, settings.repeats)
        peak = peak_seconds(seconds, squares)
        figures[figure] = median_ratio([work * each for each in peak], seconds["engine"])
        rows.append(
            {
                "rows × length": f"{settings.rows} × {length}",
                "share of peak": figures[figure],
                "rows per second": settings.rows / statistics.median(seconds["engine"]),
                "GFLOP/s": 2 * work / statistics.median(seconds["engine"]) / 1e9,
                "peak GFLOP/s": 2 / statistics.median(peak) / 1e9,
            }
        )
    return figures, rows


def geometry_of(layers: int) -> RootGeometry:
    return replace(BERT_BASE_UPPER, num_upper_layers=layers)


@bench(
    "limit",
    bars={"bare_over_peak": at_least(0.8), "bare_over_peak_short": at_least(0.8)},
)
def limit(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with bare_engine(geometry_of(settings.layers), settings.hplms, options.seed) as engine:
        return Result(asdict(settings), *measure(engine, settings))


if __name__ == "__main__":
    limit.main()
