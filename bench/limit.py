"""How close does the bare engine come to what the same multiply-adds need as plain matrix products?

64 waiting rows, every one of another hPLM, adapters and heads included. The peak is that of the fastest large square
product of the same precision, measured in turn with the engine; the share is the time that the rows' multiply-adds
would take at this peak over the time that they took. On a CPU the threads share a product, or each has one of its own,
as the engine's have: whatever is fastest is the peak.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from backends.engine.crew import Crew
from backends.root.geometry import RootGeometry
from bench.bare import ROWS, BareEngine, Seconds, bare_engine, interleaved, median_ratio, multiply_adds
from bench.random_root import BERT_BASE_UPPER
from bench.report import Report, parser

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


FULL = Settings(layers=6, repeats=9)
QUICK = Settings(layers=2, repeats=5)


def square_products(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    def product(left: Tensor, right: Tensor, out: Tensor) -> Callable[[], object]:
        def run() -> None:
            torch.mm(left, right, out=out)
            out[0, 0].item()

        return run

    squares = {}
    for size in SQUARES:
        left, right, out = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(3))
        squares[f"square {size}"] = product(left, right, out)
    if device.type == "cpu":
        squares |= side_by_side(Crew(torch.get_num_threads(), device), dtype)
    return squares


def side_by_side(crew: Crew, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """As many products at once as there are threads; the time of one is that of all over their number."""
    count = torch.get_num_threads()

    def products(size: int) -> Callable[[], object]:
        parts = [[torch.randn(size, size, dtype=dtype) for _ in range(3)] for _ in range(count)]
        return lambda: crew.run(lambda part: torch.mm(part[0], part[1], out=part[2]), parts)

    return {f"{count} squares {size}": products(size) for size in SQUARES[:-1]}


def peak_seconds(seconds: Seconds) -> list[float]:
    """Per repeat, the seconds of one multiply-add in the square product that was fastest on the whole."""
    per_one = [
        [each / (multiply_adds_of(name)) for each in taken] for name, taken in seconds.items() if "square" in name
    ]
    return min(per_one, key=statistics.median)


def multiply_adds_of(products: str) -> int:
    """Of what `square_products` calls so."""
    count, size = re.fullmatch(r"(?:(\d+) )?squares? (\d+)", products).groups()  # type: ignore[union-attr]
    return int(count or 1) * int(size) ** 3


def measure(engine: BareEngine, settings: Settings) -> tuple[dict[str, float], list[dict[str, object]]]:
    stack = engine.stack(dtype=settings.dtype)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures, rows = {}, []
    for figure, length in LENGTHS.items():
        lengths = [length] * settings.rows
        waiting = engine.waiting(stack, engine.rows(lengths), settings.hplms)
        work = multiply_adds(engine.geometry, lengths)
        seconds = interleaved({"engine": waiting.run, **square_products(device, torch.bfloat16)}, settings.repeats)
        peak = peak_seconds(seconds)
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
