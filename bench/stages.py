"""When do pipeline stages pay: two roots on two cores, against each root on its own core, and against pooling?

AlpaServe's second figure with this project's engine, without Triton. Each way serves the same requests, of one row, at
1.2 times what one core can compute: each root on a core of its own (simple), both cut in two stages, of one process
(stages) and of a process each (stage processes, as stages that are Triton models), both on an engine of two threads
(pool), and both on either core (replicas; requests are dealt to the core that is free first). Only the first three
would do where a core's memory had room for one root. With batches of one row, as in the paper, and of up to 64. Mean
latencies, on the same arrivals in each turn; the planner's simulation foretells them from the times of rows.

A turn takes up to half an hour. Each is kept in a file of `--trials`, and the same command goes on with those that are
not there, as long as it runs on the same machine.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from backends.engine.precision import fast_float_dtype
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.progress import one_by_one
from bench.kit.report import machine
from bench.kit.stages.answers import answers_apart
from bench.kit.stages.engine_process import Asking
from bench.kit.stages.foretold import foretold_s
from bench.kit.stages.loads import SHAPES, Load, drawn
from bench.kit.stages.ways import POOL, PROCESSES, REPLICAS, SIMPLE, STAGES, Way, running, ways, winner
from bench.kit.synthetic_home import BERT_BASE, BaseHome, Family, base_home
from bench.kit.trials import Trials

_ROOTS = ("one", "other")
_GEOMETRY: RootGeometry = replace(BERT_BASE, vocab_size=2_000)
_NAME_OF_BATCH = {1: "", 64: "_64"}


@dataclass(frozen=True)
class Settings:
    requests: int = 2_000
    turns: int = 3
    tokens: int = 20
    load: float = 1.2
    """In row times of one core."""
    batches: tuple[int, ...] = (1, 64)
    hplms: int = 16
    alone: int = 200
    dtype: str = fast_float_dtype(torch.device("cpu"))


FULL = Settings()
QUICK = replace(FULL, requests=300, turns=1, alone=60)


@dataclass(frozen=True)
class Cell:
    """One way in one turn."""

    batch: int
    traffic: str
    way: str
    mean_s: float
    p99_s: float
    foretold_s: float
    alone_s: float
    """Of a row that is alone."""


def asked_of(base: BaseHome, settings: Settings) -> Asking:
    hplms = []
    for root in _ROOTS:
        base.add_root(root, _GEOMETRY, [])
        hplms.append(tuple(base.add_hplms(Family(root, root, settings.hplms))))
    return Asking(base.home.path, tuple(hplms), settings.tokens, settings.dtype)


def turn(
    asking: Asking, all_ways: Mapping[str, Way], batch: int, settings: Settings, rng: np.random.Generator
) -> Iterator[Cell]:
    """Play each traffic in each way; simple first, whose row time sets the rate."""
    loads: dict[str, Load] = {}
    row_s = 0.0
    for name, way in all_ways.items():
        with running(way, asking, batch) as engines:
            times = engines.row_times(settings.alone)
            row_s = row_s or times.alone_s
            for traffic, shape in SHAPES.items():
                if traffic not in loads:
                    loads[traffic] = drawn(shape, settings.load / row_s, settings.requests, rng)
                took_s = engines.latencies_s(loads[traffic], row_s)
                measured = float(took_s.mean()), float(np.quantile(took_s, 0.99))
                yield Cell(batch, traffic, name, *measured, foretold_s(name, loads[traffic], times), times.alone_s)


def figures_of(cells: Sequence[Cell], apart: float) -> dict[str, float]:
    found: dict[str, float] = {}
    right: list[bool] = []
    for batch, traffic, means, foretold in _by_cell(cells):
        name = f"{traffic}{_NAME_OF_BATCH.get(batch, f'_{batch}')}"
        found[f"stages_over_simple_{name}"] = _ratio(means[SIMPLE], means[STAGES])
        found[f"stage_processes_over_simple_{name}"] = _ratio(means[SIMPLE], means[PROCESSES])
        found[f"pool_over_stages_{name}"] = _ratio(means[STAGES], means[POOL])
        found[f"replicas_over_stages_{name}"] = _ratio(means[STAGES], means[REPLICAS])
        right.append(winner(_medians(means)) == winner(_medians(foretold)))
    alone_s = {way: [cell.alone_s for cell in cells if cell.way == way] for way in (SIMPLE, STAGES, PROCESSES)}
    return {
        **found,
        "winner_foretold": sum(right) / len(right),
        "hop_us_per_row": 1e6 * _apart(alone_s[STAGES], alone_s[SIMPLE]),
        "hop_us_per_row_processes": 1e6 * _apart(alone_s[PROCESSES], alone_s[SIMPLE]),
        "row_ms_one_core": 1e3 * median(alone_s[SIMPLE]),
        "answers_apart": apart,
    }


def rows_of(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for batch, traffic, means, foretold in _by_cell(cells):
        of_cell = [cell for cell in cells if (cell.batch, cell.traffic) == (batch, traffic)]
        for way in means:
            p99_s = [cell.p99_s for cell in of_cell if cell.way == way]
            yield {
                "batch": batch,
                "traffic": traffic,
                "way": way,
                "mean ms": 1e3 * median(means[way]),
                "p99 ms": 1e3 * median(p99_s),
                "foretold ms": 1e3 * median(foretold[way]),
                "simple over it": _ratio(means[SIMPLE], means[way]),
            }


Means = Mapping[str, Sequence[float]]


def _by_cell(cells: Sequence[Cell]) -> Iterator[tuple[int, str, Means, Means]]:
    """Yield batch, traffic, and by way the mean latencies of all turns, measured and foretold."""
    for batch, traffic in dict.fromkeys((cell.batch, cell.traffic) for cell in cells):
        means: dict[str, list[float]] = {}
        foretold: dict[str, list[float]] = {}
        for cell in cells:
            if (cell.batch, cell.traffic) == (batch, traffic):
                means.setdefault(cell.way, []).append(cell.mean_s)
                foretold.setdefault(cell.way, []).append(cell.foretold_s)
        yield batch, traffic, means, foretold


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios within each turn."""
    return median(a / b for a, b in zip(over, under, strict=True))


def _apart(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the differences within each turn."""
    return median(a - b for a, b in zip(above, below, strict=True))


def _medians(means: Means) -> dict[str, float]:
    return {way: median(of_way) for way, of_way in means.items()}


def _two_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise InvalidArgumentError("two cores are compared, and this process may use one")
    return cores[0], cores[1]


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--trials", type=Path, metavar="FOLDER", help="keep what was measured in each turn there")


@bench(
    "stages",
    quick_s=QUICK_LOADS_S,
    add_options=add_options,
    bars={
        "stages_over_simple_poisson": at_least(1.15),
        "stages_over_simple_cv3": at_least(1.5),
        "stages_over_simple_skew": at_least(4),
        "winner_foretold": at_least(1),
        "answers_apart": at_most(0.02),
    },
)
def stages(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    all_ways = ways(*_two_cores())
    trials = Trials(options.trials, {**asdict(settings), "seed": options.seed, "machine": machine()})
    cells: list[Cell] = []
    with base_home(options.seed) as base:
        asking = asked_of(base, settings)
        root = RootFolder(base.home.root(_ROOTS[0]))
        apart = answers_apart(root, settings.dtype, [settings.tokens] * 32, options.seed)
        planned = [(batch, number) for batch in settings.batches for number in range(settings.turns)]
        for batch, number in one_by_one(planned, "stages", "batch and turn"):
            name = f"batch-{batch}-turn-{number}"
            rows = trials.find(name)
            if rows is None:
                rng = np.random.default_rng([options.seed, batch, number])
                rows = [asdict(cell) for cell in turn(asking, all_ways, batch, settings, rng)]
                trials.keep(name, rows)
            cells += [Cell(**row) for row in rows]
    return Result(asdict(settings), figures_of(cells, apart), list(rows_of(cells)))


if __name__ == "__main__":
    stages.main()
