"""When do pipeline stages pay: two roots on two cores, against each root on its own core, and against pooling?

AlpaServe's second figure with this project's engine, without Triton. Each way serves the same requests, of one row, at
1.2 times what one core can compute: each root on a core of its own (simple), both cut in two stages, of one process
(stages) and of a process each (stage processes, as stages that are Triton models), both on an engine of two threads
(pool), and both on either core (replicas; requests are dealt to the core that is free first). Only the first three
would do where a core's memory had room for one root. With batches of one row, as in the paper, and of up to 64.

Ways are compared by their mean latency in times of a row, on the same arrivals in each turn. A virtual machine's speed
drifts, so the time of a row on one core is measured anew before each way gets each traffic, on both cores at once, and
arrivals are timed by that; `row_drift` is how much it had changed afterwards. The planner's simulation foretells
latencies from what rows take in each way.

A turn takes half an hour. Each is kept in a file of `--trials`, and the same command goes on with those that are
not there, as long as it runs on the same machine.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
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
from bench.kit.stages.foretold import foretold_mean_s
from bench.kit.stages.loads import SHAPES, Load, drawn
from bench.kit.stages.ways import POOL, PROCESSES, REPLICAS, SIMPLE, STAGES, RowTimes, Way, running, ways, winner
from bench.kit.synthetic_home import BERT_BASE, BaseHome, Family, base_home
from bench.kit.trials import Trials

_ROOTS = ("one", "other")
_GEOMETRY: RootGeometry = replace(BERT_BASE, vocab_size=2_000)
_NAME_OF_BATCH = {1: "", 64: "_64"}
_EDITION = 1
"""Version of the kept turns. Raise it when the measurement changes."""


@dataclass(frozen=True)
class Settings:
    requests: int = 2_000
    turns: int = 3
    tokens: int = 20
    load: float = 1.2
    """In row times of one core."""
    batches: tuple[int, ...] = (1, 64)
    hplms: int = 16
    alone: int = 120
    """Rows that are timed each time."""
    dtype: str = fast_float_dtype(torch.device("cpu"))


FULL = Settings()
QUICK = replace(FULL, requests=300, turns=1, alone=30)


@dataclass(frozen=True)
class Cell:
    """One way with one traffic in one turn.

    Attributes:
        row_s: What a row took just before on a core of its own.
        row_after_s: The same just afterwards.
        mean_rows: Mean latency, in times of `row_s`.
        alone_s: What a row alone took in this way, once it was warm.
        busy_s: What a row took then where rows waited all the time.
        then_s: What a row took then on a core of its own.
    """

    batch: int
    number: int
    traffic: str
    way: str
    row_s: float
    row_after_s: float
    mean_rows: float
    p99_rows: float
    alone_s: float
    busy_s: float
    then_s: float

    def foretold_rows(self, in_rows: Load) -> float:
        """Return the mean latency that is foretold for a load whose times are in rows'."""
        slower = self.row_s / self.then_s
        times = RowTimes(self.row_s if self.way == SIMPLE else slower * self.alone_s, slower * self.busy_s)
        return foretold_mean_s(self.way, in_rows.times(self.row_s), times, self.batch) / self.row_s


def asked_of(base: BaseHome, settings: Settings) -> Asking:
    hplms = []
    for root in _ROOTS:
        base.add_root(root, _GEOMETRY, [])
        hplms.append(tuple(base.add_hplms(Family(root, root, settings.hplms))))
    return Asking(base.home.path, tuple(hplms), settings.tokens, settings.dtype)


def loads_in_rows(settings: Settings, batch: int, number: int, seed: int) -> dict[str, Load]:
    """Draw the loads of a turn, whose times are in rows'."""
    rng = np.random.default_rng([seed, batch, number])
    return {traffic: drawn(shape, settings.load, settings.requests, rng) for traffic, shape in SHAPES.items()}


def turn(
    asking: Asking, all_ways: Sequence[Way], batch: int, number: int, settings: Settings, seed: int
) -> Iterator[Cell]:
    """Play each traffic in each way; the first one is simple, and stays there to time rows."""
    loads = loads_in_rows(settings, batch, number, seed)
    with running(all_ways[0], asking, batch) as simple:
        for way in all_ways:
            with nullcontext(simple) if way.name == SIMPLE else running(way, asking, batch) as engines:
                times = engines.row_times(settings.alone)
                then_s = row_s = simple.row_s(settings.alone)
                for traffic, load in loads.items():
                    took_rows = engines.latencies_s(load.times(row_s), row_s) / row_s
                    after_s = simple.row_s(settings.alone)
                    measured = float(took_rows.mean()), float(np.quantile(took_rows, 0.99))
                    then = times.alone_s, times.busy_s, then_s
                    yield Cell(batch, number, traffic, way.name, row_s, after_s, *measured, *then)
                    row_s = after_s


def in_turn(all_ways: Mapping[str, Way], number: int) -> list[Way]:
    """Return simple first, and the others in another order each turn."""
    others = [way for way in all_ways.values() if way.name != SIMPLE]
    begin = number % len(others)
    return [all_ways[SIMPLE], *others[begin:], *others[:begin]]


def figures_of(cells: Sequence[Cell], foretold_rows: Sequence[float], apart: float) -> dict[str, float]:
    found: dict[str, float] = {}
    right: list[bool] = []
    for batch, traffic, means, foretold in _by_cell(cells, foretold_rows):
        name = f"{traffic}{_NAME_OF_BATCH.get(batch, f'_{batch}')}"
        found[f"stages_over_simple_{name}"] = _ratio(means[SIMPLE], means[STAGES])
        found[f"stage_processes_over_simple_{name}"] = _ratio(means[SIMPLE], means[PROCESSES])
        found[f"pool_over_stages_{name}"] = _ratio(means[STAGES], means[POOL])
        found[f"replicas_over_stages_{name}"] = _ratio(means[STAGES], means[REPLICAS])
        right.append(winner(_medians(means)) == winner(_medians(foretold)))
    return {
        **found,
        "winner_foretold": sum(right) / len(right),
        "hop_us_per_row": 1e6 * median(cell.alone_s - cell.then_s for cell in cells if cell.way == STAGES),
        "hop_us_per_row_processes": 1e6 * median(cell.alone_s - cell.then_s for cell in cells if cell.way == PROCESSES),
        "row_drift": median(abs(cell.row_after_s / cell.row_s - 1) for cell in cells),
        "row_ms_one_core": 1e3 * median(cell.row_s for cell in cells),
        "answers_apart": apart,
    }


def rows_of(cells: Sequence[Cell], foretold_rows: Sequence[float]) -> Iterator[dict[str, Any]]:
    for batch, traffic, means, foretold in _by_cell(cells, foretold_rows):
        of_cell = [cell for cell in cells if (cell.batch, cell.traffic) == (batch, traffic)]
        for way in means:
            of_way = [cell for cell in of_cell if cell.way == way]
            yield {
                "batch": batch,
                "traffic": traffic,
                "way": way,
                "row ms": 1e3 * median(cell.row_s for cell in of_way),
                "mean in rows": median(means[way]),
                "p99 in rows": median(cell.p99_rows for cell in of_way),
                "foretold in rows": median(foretold[way]),
                "simple over it": _ratio(means[SIMPLE], means[way]),
            }


Means = Mapping[str, Sequence[float]]


def _by_cell(cells: Sequence[Cell], foretold_rows: Sequence[float]) -> Iterator[tuple[int, str, Means, Means]]:
    """Yield batch, traffic, and by way the mean latencies of all turns in rows' times, measured and foretold."""
    for batch, traffic in dict.fromkeys((cell.batch, cell.traffic) for cell in cells):
        means: dict[str, list[float]] = {}
        foretold: dict[str, list[float]] = {}
        for cell, told in zip(cells, foretold_rows, strict=True):
            if (cell.batch, cell.traffic) == (batch, traffic):
                means.setdefault(cell.way, []).append(cell.mean_rows)
                foretold.setdefault(cell.way, []).append(told)
        yield batch, traffic, means, foretold


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios within each turn."""
    return median(a / b for a, b in zip(over, under, strict=True))


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
    depends_on = {"edition": _EDITION, "ways": list(all_ways), "seed": options.seed, "machine": machine()}
    trials = Trials(options.trials, {**asdict(settings), **depends_on})
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
                in_order = in_turn(all_ways, number)
                rows = [asdict(cell) for cell in turn(asking, in_order, batch, number, settings, options.seed)]
                trials.keep(name, rows)
            cells += [Cell(**row) for row in rows]
    foretold_rows = [
        cell.foretold_rows(loads_in_rows(settings, cell.batch, cell.number, options.seed)[cell.traffic])
        for cell in cells
    ]
    return Result(asdict(settings), figures_of(cells, foretold_rows, apart), list(rows_of(cells, foretold_rows)))


if __name__ == "__main__":
    stages.main()
