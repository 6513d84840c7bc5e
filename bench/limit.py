"""How close does the bare engine come to what the same multiply-adds need as plain matrix products?

64 waiting rows, every one of another hPLM, adapters and heads included. The peak is that of the fastest large square
product of the same precision, measured in turn with the engine; the share is the time that the rows' multiply-adds
would take at this peak over the time that they took. On a CPU the threads share a product, or each has one of its own,
as the engine's have: whatever is fastest is the peak.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

import torch

from backends.engine.crew import Crew
from backends.root.geometry import RootGeometry
from bench.kit.bare import ROWS, BareEngine, Seconds, bare_engine, interleaved, median_ratio, multiply_adds
from bench.kit.random_root import BERT_BASE_UPPER
from bench.kit.report import Report, parser

LENGTHS = {"bare_over_peak": 128, "bare_over_peak_short": 20}
SQUARES = (1024, 2048, 4096)


@dataclass(frozen=True)
class Settings:
    layers: int
    repeats: int
    rows: int = ROWS
    hplms: int = ROWS
    dtype: str = "bf16"
    timing: str = "all ways in turn, the median of the ratios within each turn"


FULL = Settings(layers=6, repeats=35)
QUICK = Settings(layers=2, repeats=5)


@dataclass(frozen=True)
class Products:
    """Square products, and how many multiply-adds they are together."""

    run: Callable[[], object]
    multiply_adds: int


def square_products(device: torch.device, dtype: torch.dtype) -> dict[str, Products]:
    def product(size: int) -> Products:
        left, right, out = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(3))

        def run() -> None:
            torch.mm(left, right, out=out)
            out[0, 0].item()

        return Products(run, size**3)

    squares = {f"square {size}": product(size) for size in SQUARES}
    if device.type == "cpu":
        squares |= side_by_side(dtype)
    return squares


def side_by_side(dtype: torch.dtype) -> dict[str, Products]:
    """As many at once as there are threads, each in a thread of its own."""
    count = torch.get_num_threads()
    crew = Crew(count, torch.device("cpu"))

    def products(size: int) -> Products:
        parts = [[torch.randn(size, size, dtype=dtype) for _ in range(3)] for _ in range(count)]
        return Products(lambda: crew.run(lambda part: torch.mm(part[0], part[1], out=part[2]), parts), count * size**3)

    return {f"{count} squares {size} side by side": products(size) for size in SQUARES[:-1]}


def peak_seconds(seconds: Seconds, squares: Mapping[str, Products]) -> list[float]:
    """Per repeat, the seconds of one multiply-add in the products that were fastest on the whole."""
    per_one = [[each / of.multiply_adds for each in seconds[name]] for name, of in squares.items()]
    return min(per_one, key=statistics.median)


def measure(engine: BareEngine, settings: Settings) -> tuple[dict[str, float], list[dict[str, object]]]:
    stack = engine.stack(dtype=settings.dtype)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures, rows = {}, []
    for figure, length in LENGTHS.items():
        lengths = [length] * settings.rows
        waiting = engine.waiting(stack, engine.rows(lengths), settings.hplms)
        work = multiply_adds(engine.geometry, lengths)
        squares = square_products(device, torch.bfloat16)
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


def main() -> None:
    arguments = parser("limit", "How close does the engine come to the matrix-product limit?").parse_args()
    settings = QUICK if arguments.quick else FULL
    with bare_engine(geometry_of(settings.layers), settings.hplms, arguments.seed) as engine:
        figures, rows = measure(engine, settings)
    Report("limit", asdict(settings), arguments.seed, figures, rows).publish(arguments.json)


if __name__ == "__main__":
    main()
