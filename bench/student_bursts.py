"""How many more rows of a burst are in time where the load decides how many students answer?

One real server. Its load is 0.6 of what all layers can answer, and three times that in bursts. The same requests are
sent for the level `full`, for a fixed number of students, and for the level `students`, in turns. Deadlines are 2 to 8
times what a full batch takes: only a burst that outlasts them costs answers. Where all layers answer no row of a burst
in time, one row counts, so `adaptive_over_full` is then at least what is said. Without `--home` weights are random:
BERT-base, texts of 128 tokens, two students of two layers each. With `--home` and `--labelled` the hPLMs of a home are
asked, whose students are trained, and `accuracy_cost` is the share of right answers that the level `students` loses, in
points, over all that it answers: all layers are asked for the same texts once more, without deadlines.

The simulator plays the same load with the profile of the root, which knows nothing of Triton and of clients.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.adapters.bank import read_artifact
from backends.adapters.student_adapters import write_student_adapters
from backends.engine.precision import fast_float_dtype
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.stack_key import FULL as FULL_LEVEL
from backends.stack_key import STUDENTS
from backends.student_levels import student_level
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.fates import Fates
from bench.kit.idle import wait_until_idle
from bench.kit.overload import Engine
from bench.kit.profiled import profiled
from bench.kit.progress import one_by_one
from bench.kit.random_students import random_student_adapters, random_students
from bench.kit.served import Serving, served
from bench.kit.server_metrics import figure_of
from bench.kit.student_run import Run
from bench.kit.synthetic_home import BERT_BASE, MIDDLE, ROOT, TenantHome, tenant_home
from builder.construct.hplm.hplms import building_hplm, publish_linked
from builder.placement import SimulatedLoad, Simulator, Students
from builder.placement.policies import policy_named
from builder.serving import TritonServer
from builder.settings.hplm import LORA_EVERYWHERE
from loadtest.in_process import Played, play
from loadtest.labelled import LabelledText, LabelledTexts, parse_labelled
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines

_CHANGES = "hplm_student_count_changes_total"
_DEADLINES_IN_BATCHES = (2, 8)
_BURST_IN_BATCHES = 24
_IN_FLIGHT_BATCHES = 3


@dataclass(frozen=True)
class Settings:
    """`cycles` of `cycle_s`, each with a burst of `burst_s` in its middle; loads are multiples of the capacity.

    Where a batch takes long, both are longer.
    """

    geometry: str
    cycles: int
    cycle_s: float
    burst_s: float
    runs: int
    profiled_batches: int
    fixed: bool
    engine: Engine = field(default_factory=lambda: Engine(dtype=fast_float_dtype(torch.device("cpu"))))
    load: float = 0.6
    burst_ratio: float = 3.0
    students: int = 2
    layers: int = 2
    tokens: int = 128
    tenants: int = 16
    capacity_batches: int = 12

    def is_burst(self, times_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        quiet_s = (self.cycle_s - self.burst_s) / 2
        within_s = times_s % self.cycle_s
        return (within_s >= quiet_s) & (within_s < quiet_s + self.burst_s)

    def outlasting(self, batch_s: float) -> Settings:
        """Return settings whose bursts outlast the longest deadline several times."""
        longer = max(1.0, _BURST_IN_BATCHES * batch_s / self.burst_s)
        return replace(self, cycle_s=longer * self.cycle_s, burst_s=longer * self.burst_s)

    @property
    def batch(self) -> int:
        """Rows of a full batch."""
        return max(1, min(self.engine.batch, self.engine.max_tokens // self.tokens))

    @property
    def duration_s(self) -> float:
        return self.cycles * self.cycle_s


FULL = Settings("BERT-base, 6 of 12 x 768 above PLOT", 3, 60.0, 10.0, runs=1, profiled_batches=100, fixed=True)
QUICK = replace(
    FULL,
    geometry="middle, 6 of 12 x 512 above PLOT",
    cycles=1,
    cycle_s=15.0,
    burst_s=5.0,
    profiled_batches=40,
    fixed=False,
    capacity_batches=6,
)


@dataclass(frozen=True)
class Asked:
    """What is asked: the hPLMs of one root, with the same number of students, and texts of each."""

    home: Home
    root: str
    texts: Mapping[str, Sequence[LabelledText]]
    best: int
    student_depth: float
    cost_model: CostModel | None
    pairs: frozenset[str] = frozenset()
    is_labelled: bool = False
    lower: Mapping[str, str] = field(default_factory=lambda: {"missing": "fallback"})

    @property
    def levels(self) -> tuple[str, ...]:
        return (FULL_LEVEL, student_level(1), student_level(self.best), STUDENTS)

    def rows(self, times_s: Sequence[float], deadlines_ms: Sequence[int], rng: np.random.Generator) -> Schedule:
        """Draw an hPLM and one of its texts for each time."""
        hplms = [*self.texts]
        chosen = [hplms[key] for key in rng.integers(len(hplms), size=len(times_s)).tolist()]
        texts = [self.texts[hplm][int(rng.integers(len(self.texts[hplm])))] for hplm in chosen]
        columns = zip(times_s, chosen, (text.text for text in texts), deadlines_ms, strict=True)
        schedule = Schedule.of((Row(*column) for column in columns), self.pairs)
        if not self.is_labelled:
            return schedule
        labels: dict[str, str | None] = {}
        for text, label in (each for of_hplm in self.texts.values() for each in of_hplm):
            # A schedule knows one label for a text; where hPLMs have several, its answers are not judged.
            labels[text] = label if labels.get(text, label) == label else None
        return replace(schedule, labels=tuple(labels[text] for text in schedule.texts))


Runs = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Measured:
    settings: Settings
    """With the lengths that the bursts had."""
    capacity_per_s: float
    runs: Runs
    simulated: Mapping[str, float]
    """The share in time of the rows in bursts, by level."""
    unhurried: Sequence[Requests] = ()
    """All layers' answers to the texts of each run, without deadlines; none where no label is known."""


class _Bursts:
    """A running server, and the loads that it meets."""

    def __init__(self, asked: Asked, server: TritonServer, settings: Settings, seed: int) -> None:
        self._asked, self._server, self._settings = asked, server, settings
        self._rng = np.random.default_rng(seed)

    def measured(self) -> Measured:
        settings, asked = self._settings, self._asked
        levels = asked.levels if settings.fixed else (FULL_LEVEL, STUDENTS)
        for level in asked.levels:
            self._capacity_per_s(level)  # adapters are loaded, and costs learned
        capacity = self._capacity_per_s(FULL_LEVEL)
        self._settings = settings.outlasting(settings.batch / capacity)
        found: dict[str, list[Run]] = {}
        unhurried: list[Requests] = []
        schedule = self._planned(capacity)
        for run in one_by_one(range(settings.runs), "student_bursts", "runs"):
            schedule = self._planned(capacity) if run else schedule
            for level in levels if run % 2 else levels[::-1]:
                found.setdefault(level, []).append(self._played(schedule, level))
            if asked.is_labelled:
                unhurried.append(self._unhurried(schedule))
        simulated = {} if asked.cost_model is None else self._simulated(schedule, asked.cost_model)
        return Measured(self._settings, capacity, found, simulated, unhurried)

    def _capacity_per_s(self, level: str) -> float:
        """Rows a second of a server that is kept full."""
        batch = self._settings.batch
        count = self._settings.capacity_batches * batch
        played = self._all_answered(replace(self._asked.rows([0.0] * count, [0] * count, self._rng), levels=(level,)))
        return played.rows_per_s(batch)

    def _unhurried(self, schedule: Schedule) -> Requests:
        return self._all_answered(replace(schedule, levels=(FULL_LEVEL,))).requests

    def _all_answered(self, schedule: Schedule) -> Played:
        """Play the rows of a schedule as fast as they are answered, and without deadlines."""
        in_flight = _IN_FLIGHT_BATCHES * self._settings.batch
        played = play(Target(self._server.grpc_url), replace(schedule, deadlines_ms=None), in_flight)
        played.require_all_answered()
        return played

    def _planned(self, capacity: float) -> Schedule:
        """Poisson arrivals, more of them in bursts."""
        settings = self._settings
        fast = PoissonArrivals(settings.load * settings.burst_ratio * capacity)
        drawn = np.asarray(fast.times_s(settings.duration_s, self._rng))
        is_kept = self._rng.random(len(drawn)) < 1 / settings.burst_ratio
        times_s = drawn[settings.is_burst(drawn) | is_kept]
        batch_ms = 1e3 * settings.batch / capacity
        shortest, longest = (round(batches * batch_ms) for batches in _DEADLINES_IN_BATCHES)
        deadlines_ms = UniformDeadlines(shortest, longest).draw_ms(len(times_s), self._rng)
        return self._asked.rows(times_s.tolist(), deadlines_ms.tolist(), self._rng)

    def _played(self, schedule: Schedule, level: str) -> Run:
        before = figure_of(self._server, _CHANGES)
        fates = Fates(play(Target(self._server.grpc_url), replace(schedule, levels=(level,))))
        wait_until_idle(self._server)
        changes = round(figure_of(self._server, _CHANGES) - before)
        return Run(fates, self._settings.is_burst(schedule.times_s), changes)

    def _simulated(self, schedule: Schedule, model: CostModel) -> dict[str, float]:
        arrived_us = (1e6 * schedule.times_s).astype(np.int64)
        deadlines_us = None if schedule.deadlines_ms is None else arrived_us + 1_000 * schedule.deadlines_ms
        load = SimulatedLoad.in_order(
            self._settings.duration_s, arrived_us, arrived_us, schedule.tokens, schedule.hplm_of, deadlines_us
        )
        engine, asked = self._settings.engine, self._asked
        capacity = Capacity(engine.batch, engine.max_tokens)
        is_burst = self._settings.is_burst(load.arrived_us / 1e6)
        found = {}
        for level, students in ((FULL_LEVEL, None), (STUDENTS, Students(asked.best, asked.student_depth))):
            simulator = Simulator(policy_named("fcfs", model), model, capacity, AdmissionSettings(), students=students)
            found[level] = float(simulator.run(load).is_answered[is_burst].mean())
        return found


def figures_of(measured: Measured) -> dict[str, float]:
    runs, adaptive, duration_s = measured.runs, measured.runs[STUDENTS], measured.settings.duration_s
    pairs = list(zip(adaptive, runs[FULL_LEVEL], strict=True))
    found = {
        "adaptive_over_full": median(one.in_time / max(full.in_time, 1 / full.is_burst.sum()) for one, full in pairs),
        "promises_kept": median(run.fates.admitted_on_time for run in adaptive),
        "changes_per_minute": median(60 * run.changes / duration_s for run in adaptive),
        "quiet_in_time": median(run.quiet_in_time for run in adaptive),
        "students_in_bursts": median(run.mean_students(True) for run in adaptive),
        "students_else": median(run.mean_students(False) for run in adaptive),
        **{f"in_time_{level.replace('-', '_')}": median(run.in_time for run in of) for level, of in runs.items()},
        "capacity_rows_per_s": measured.capacity_per_s,
    }
    if measured.unhurried:
        of_runs = zip(adaptive, measured.unhurried, strict=True)
        lost = np.concatenate([full.right - one.fates.played.requests.right for one, full in of_runs])
        if (is_judged := ~np.isnan(lost)).any():
            found["accuracy_cost"] = 100 * float(lost[is_judged].mean())
    found |= {f"simulated_in_time_{level}": share for level, share in measured.simulated.items()}
    return found


@contextmanager
def _random(settings: Settings, geometry: RootGeometry, seed: int) -> Iterator[Asked]:
    with tenant_home(geometry, settings.tenants, [settings.tokens], seed, recipe=LORA_EVERYWHERE) as made:
        depth = _add_students(made, settings, torch.Generator().manual_seed(seed))
        model = profiled(made.home, ROOT, settings.engine.parameters, settings.profiled_batches)
        texts = [LabelledText(text, "") for text in made.texts[settings.tokens]]
        yield Asked(made.home, ROOT, dict.fromkeys(made.hplms, texts), settings.students, depth, model)


def _add_students(made: TenantHome, settings: Settings, generator: torch.Generator) -> float:
    """Make students, and adapters for them of every hPLM; returns what one costs."""
    home, root = made.home, RootFolder(made.home.root(ROOT))
    registry, students = Registry.open(home), random_students(root, settings.students, settings.layers, generator)
    depth = students.shape.depth(root.geometry)
    offered = {"students": {"set": students.fingerprint, "best": settings.students, "depth": depth}}
    for hplm in made.hplms:
        live = registry.hplm(hplm)
        artifact = read_artifact(home.path / live.folder, root.fingerprint)
        own = random_student_adapters(students, artifact, generator, LORA_EVERYWHERE)
        with building_hplm(home, hplm):
            publish_linked(home, registry, live, partial(write_student_adapters, students=own), offered)
    registry.close()
    return depth


def _of_home(path: Path, files: Mapping[str, Path]) -> Asked:
    home = Home(path.absolute())
    registry = Registry.open(home)
    entries = [registry.hplm(hplm) for hplm in files]
    registry.close()
    kinds = {(entry.domain.root, entry.students) for entry in entries}
    if len(kinds) != 1 or entries[0].students is None:
        raise InvalidArgumentError("--labelled names hPLMs of one root that have the same students, as many each")
    students = entries[0].students
    return Asked(
        home,
        entries[0].domain.root,
        LabelledTexts.read(files).of_hplm,
        students.best,
        students.depth,
        cost_model=None,
        pairs=frozenset(entry.id for entry in entries if entry.pair),
        is_labelled=True,
        lower={},
    )


def _add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, help="a home whose hPLMs have students (random ones)")
    arguments.add_argument(
        "--labelled",
        action="append",
        default=[],
        metavar="ID=FILE",
        help="with --home: an hPLM and its texts with right labels; may be repeated",
    )


@bench(
    "student_bursts",
    quick_s=QUICK_LOADS_S,
    add_options=_add_options,
    bars={
        "adaptive_over_full": at_least(1.6),
        "accuracy_cost": at_most(1.5),
        "promises_kept": at_least(0.99),
        "changes_per_minute": at_most(6),
    },
)
def student_bursts(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    if (options.home is None) != (not options.labelled):
        raise InvalidArgumentError("--home and --labelled go together")
    if options.home is not None:
        settings = replace(settings, geometry=f"of {options.home.name}", tokens=32)
        measured = _measured(_of_home(options.home, parse_labelled(options.labelled)), settings, options.seed)
    else:
        with _random(settings, MIDDLE if options.quick else BERT_BASE, options.seed) as asked:
            measured = _measured(asked, settings, options.seed)
    return Result(asdict(measured.settings), figures_of(measured), _table(measured.runs))


def _table(runs: Runs) -> list[dict[str, Any]]:
    return [{"level": level, "run": number, **run.row()} for level, of in runs.items() for number, run in enumerate(of)]


def _measured(asked: Asked, settings: Settings, seed: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="hplm-bursts-") as repository:
        serving = Serving(name=f"{repository}/repository", lower=asked.lower, upper=settings.engine.parameters)
        with served(asked.home, serving) as server:
            return _Bursts(asked, server, settings, seed).measured()


if __name__ == "__main__":
    student_bursts.main()
