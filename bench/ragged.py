"""What does padding cost, and how much of it do the five layouts win back?

The TCB paper's workloads: lengths of 3 to 100 tokens around a mean of 20, with a variance of 20, a variance of 100,
and a standard deviation of 20 (a clipped normal). Each batch is formed from 64 waiting requests. With `--data` and
`--tokenizer` also the lengths of real tasks' texts.
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from backends.engine.stack import UpperStack
from backends.errors import InvalidArgumentError
from bench.kit.bare import ROWS, BareEngine, Seconds, WaitingRows, bare_engine, timed
from bench.kit.entry import Result, at_least, bench
from bench.kit.layouts import ALL_LAYOUTS
from bench.limit import geometry_of
from bench.tasks.real_lengths import real_lengths

MEAN, SHORTEST, LONGEST = 20, 3, 100
DEVIATIONS = {"v20": 20**0.5, "v100": 10.0, "s20": 20.0}
Lengths = Callable[[], list[int]]


@dataclass(frozen=True)
class Settings:
    layers: int
    batches: int
    rows: int = ROWS
    hplms: int = 16
    max_tokens: int = 128
    dtype: str = "bf16"
    warm_batches: int = 10
    timing: str = (
        "every batch once in all layouts, each time another first, after others; the median of the ratios of each batch"
    )


FULL = Settings(layers=6, batches=15)
QUICK = Settings(layers=2, batches=4, warm_batches=2)


@dataclass(frozen=True)
class Measured:
    """One workload: per layout the seconds of each batch, and per layout how many tokens it computes."""

    seconds: Seconds
    tokens: dict[str, list[int]]
    real_tokens: list[int]

    def over(self, layout: str, other: str) -> float:
        """Throughput of one layout over another's."""
        return statistics.median(b / a for a, b in zip(self.seconds[layout], self.seconds[other], strict=True))

    def waste_recovered(self) -> float:
        """(throughput of ragged over padded) over (padded tokens over real tokens)."""
        ragged, padded = self.seconds["ragged"], self.seconds["padded"]
        tokens = zip(padded, ragged, self.real_tokens, self.tokens["padded"], strict=True)
        return statistics.median(a / b * real / with_padding for a, b, real, with_padding in tokens)


def drawn(rng: np.random.Generator, deviation: float, count: int) -> list[int]:
    lengths = np.rint(rng.normal(MEAN, deviation, count)).clip(SHORTEST, LONGEST)
    return [int(length) for length in lengths]


def measure(engine: BareEngine, stacks: Mapping[str, UpperStack], settings: Settings, lengths: Lengths) -> Measured:
    seconds: Seconds = {layout: [] for layout in stacks}
    tokens: dict[str, list[int]] = {layout: [] for layout in stacks}
    real_tokens = []
    for number in range(-settings.warm_batches, settings.batches):
        rows = engine.rows(lengths())
        waiting = {layout: engine.waiting(stack, rows, settings.hplms) for layout, stack in stacks.items()}
        elapsed = {layout: timed(waiting[layout].run) for layout in _rotated(list(stacks), number)}
        if number >= 0:
            real_tokens.append(sum(len(row) for row in rows))
            for layout, one in waiting.items():
                seconds[layout].append(elapsed[layout])
                tokens[layout].append(one.padded_tokens())
        for one in waiting.values():
            _release(one)
    return Measured(seconds, tokens, real_tokens)


def _rotated(names: list[str], by: int) -> list[str]:
    """The first to run meets rows that are in no cache yet."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def _release(waiting: WaitingRows) -> None:
    for hplm in waiting.hplms:
        waiting.stack.release(hplm)


def table(workload: str, measured: Measured) -> list[dict[str, object]]:
    real = sum(measured.real_tokens)
    return [
        {
            "workload": workload,
            "layout": layout,
            "tokens over real tokens": sum(measured.tokens[layout]) / real,
            "milliseconds": 1000 * statistics.median(of_layout),
            "rows per second": ROWS / statistics.median(of_layout),
            "throughput over padded": measured.over(layout, "padded"),
        }
        for layout, of_layout in measured.seconds.items()
    ]


def figures_of(measured: Mapping[str, Measured]) -> dict[str, float]:
    recovered = {f"waste_recovered_{name}": one.waste_recovered() for name, one in measured.items()}
    widest = measured["s20"]
    return {
        **recovered,
        "ragged_over_padded_s20": widest.over("ragged", "padded"),
        "ragged_over_sorted_s20": widest.over("ragged", "sorted"),
    }


def workloads(settings: Settings, seed: int, real: Mapping[str, Sequence[int]]) -> dict[str, Lengths]:
    rng = np.random.default_rng(seed)
    made: dict[str, Lengths] = {
        name: partial(drawn, rng, deviation, settings.rows) for name, deviation in DEVIATIONS.items()
    }
    for name, lengths in real.items():
        made[name] = lambda lengths=lengths: [int(length) for length in rng.choice(lengths, settings.rows)]  # type: ignore[misc]
    return made


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--data", type=Path, help="a folder whose tasks/ hold real texts; needs --tokenizer")
    arguments.add_argument("--tokenizer", type=Path, help="a tokenizer.json for them")


@bench(
    "ragged",
    bars={
        "waste_recovered_v20": at_least(0.9),
        "waste_recovered_v100": at_least(0.9),
        "waste_recovered_s20": at_least(0.9),
        "ragged_over_padded_s20": at_least(2.2),
        "ragged_over_sorted_s20": at_least(1.1),
    },
    add_options=add_options,
)
def ragged(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    if (options.data is None) != (options.tokenizer is None):
        raise InvalidArgumentError("--data and --tokenizer belong together")
    real = real_lengths(options.data, options.tokenizer, settings.max_tokens) if options.data else {}
    with bare_engine(geometry_of(settings.layers), settings.hplms, options.seed) as engine:
        stacks = {name: engine.stack(settings.dtype, layout_of=layout) for name, layout in ALL_LAYOUTS.items()}
        made = workloads(settings, options.seed, real)
        measured = {name: measure(engine, stacks, settings, lengths) for name, lengths in made.items()}
    rows = [row for name, one in measured.items() for row in table(name, one)]
    return Result(asdict(settings), figures_of(measured), rows)


if __name__ == "__main__":
    ragged.main()
