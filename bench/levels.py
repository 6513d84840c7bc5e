"""What do early answers save in latency and throughput, as served, and how many points of accuracy do they cost?

For each task an hPLM is tuned with the settings of `hplm create`, in the home, where other benches find it. Its ladder
is selected in a copy: the dev texts, which have also chosen the hPLM's epoch, certify that `max_drop` points at most
are lost. `kept tokens` is of ladders that leave out words of texts that go on. Copies of the hPLMs that got a ladder go
to `tenants` tenants on one real server with the default export. Each test text is asked once without a level and once
for `full`; the first answers, for which the server has computed nothing yet, are judged. Then, in each round, the same
requests are played for `full` and without a level, in turns: alone, until nothing more fits, and by Poisson arrivals at
`load` of what `full` bears. Ratios are medians over the rounds.

`same_level_share` compares levels in company with those alone. `full_same_label_share` compares labels of the level
`full`, each asked alone, with a server whose hPLMs have no ladders. Tuned hPLMs and measured rounds are kept in
`--trials`, and the same command goes on with what is not there.
"""

from __future__ import annotations

import math
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.root.store import RootFolder
from backends.stack_key import FULL as FULL_LEVEL
from backends.wire import AUTO, EARLY
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.progress import one_by_one
from bench.kit.report import machine
from bench.kit.scratch_home import copied_home
from bench.kit.trials import Trials
from bench.tasks.cut import CutTask, cut_task
from bench.tasks.data import Caps, labelled_task_names, task_checksums, task_names
from bench.tasks.laddered import LadderedTask, LadderedTasks, add_tenants, task_of
from bench.tasks.levels_load import Answers, ByTask, LevelsLoad, Tenants, is_same, poisson_times_s
from bench.tasks.shared_tuning import SHARED_TRAIN_TEXTS, SharedTunings
from builder.export.repository import render_repository
from builder.levels.target import Target
from builder.serving import ServerConfig, TritonServer
from builder.settings.hplm import TuneSettings
from cli.export import export_settings

_LEVELS = (FULL_LEVEL, AUTO)


@dataclass(frozen=True)
class Settings:
    train_texts: int
    dev_texts: int | None
    test_texts: int | None
    epochs: int
    max_drop: float
    rounds: int
    alone_texts: int
    saturated_texts: int
    load_s: float
    compared_texts: int
    load: float = 0.8
    tenants: int = 64
    callers: int = 16
    in_flight: int = 128
    seed: int = 17


FULL = Settings(
    train_texts=SHARED_TRAIN_TEXTS,
    dev_texts=None,
    test_texts=None,
    epochs=TuneSettings.epochs,
    max_drop=1.0,
    rounds=5,
    alone_texts=400,
    saturated_texts=2_048,
    load_s=30.0,
    compared_texts=1_000,
)
QUICK = Settings(
    train_texts=300,
    dev_texts=300,
    test_texts=100,
    epochs=2,
    max_drop=5.0,
    rounds=2,
    alone_texts=100,
    saturated_texts=384,
    load_s=4.0,
    compared_texts=60,
)
_QUICK_TASKS = ("csabstruct", "sst2")
_FIRST = "first"


@dataclass(frozen=True)
class Round:
    """What requests of one round took, by level; times by task."""

    alone_ms: Mapping[str, ByTask]
    loaded_ms: Mapping[str, ByTask]
    rows_per_s: Mapping[str, float]

    def alone_ratio(self) -> float:
        return mean(_all(self.alone_ms[AUTO])) / mean(_all(self.alone_ms[FULL_LEVEL]))

    def p99_ratio(self) -> float:
        last = {level: float(np.percentile(_all(self.alone_ms[level]), 99)) for level in _LEVELS}
        return last[AUTO] / last[FULL_LEVEL]

    def loaded_ratio(self) -> float:
        return mean(_all(self.loaded_ms[AUTO])) / mean(_all(self.loaded_ms[FULL_LEVEL]))

    def rate_ratio(self) -> float:
        return self.rows_per_s[AUTO] / self.rows_per_s[FULL_LEVEL]


def _round_name(number: int) -> str:
    return f"round-{number}"


def _all(by_task: ByTask) -> list[float]:
    return [each for of_task in by_task.values() for each in of_task]


@dataclass(frozen=True)
class FirstAnswers:
    """The first answers to all test texts, and those to some of them alone and of a server without ladders."""

    ladder: Answers
    full: Answers
    ladder_alone: Answers
    full_alone: Answers
    plain_alone: Answers

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each task, whose counts add up."""
        return [self._row(task) for task in sorted({question.task for question in self.ladder})]

    def _row(self, task: str) -> dict[str, Any]:
        own = [question for question in self.ladder if question.task == task]
        changed = [
            question.is_right(self.full[question]) - question.is_right(self.ladder[question]) for question in own
        ]
        alone = [question for question in self.ladder_alone if question.task == task]
        return {
            "task": task,
            "texts": len(own),
            "harmed": changed.count(1),
            "helped": changed.count(-1),
            "full right": sum(question.is_right(self.full[question]) for question in own),
            "early": sum(self.ladder[question].level == EARLY for question in own),
            "inexact": sum(not self.ladder[question].exact for question in own),
            "alone": len(alone),
            "same level": sum(self.ladder[each].level == self.ladder_alone[each].level for each in alone),
            "same label": sum(is_same(self.full_alone[each], self.plain_alone[each]) for each in alone),
        }


class Bench:
    """hPLMs with ladders in a home, and what was measured of them so far."""

    def __init__(self, home: Home, tasks: Sequence[LadderedTask], cut: Mapping[str, CutTask], settings: Settings):
        self._home, self._settings = home, settings
        self._models = [task.entry for task in tasks if task.found]
        if not self._models:
            reasons = "; ".join(f"{task.name}: {task.reason}" for task in tasks)
            raise NotFoundError(f"no task certifies that texts may leave early. {reasons}")
        self._tests = {task_of(model.id): cut[task_of(model.id)].read().test for model in self._models}

    def measured(self, trials: Trials) -> tuple[list[dict[str, Any]], list[Round]]:
        """Return a row of counts for each task, and the rounds; only what is not kept is measured."""
        numbers = range(self._settings.rounds)
        missing = [number for number in numbers if trials.find(_round_name(number)) is None]
        is_first = trials.find(_FIRST) is None
        if is_first or missing:
            plain = self._plain_answers() if is_first else {}
            with self._served(has_ladders=True) as (load, tenants):
                every = tenants.every_text(np.random.default_rng(self._settings.seed))
                # Also where these are known: the tables of this server are to have what rounds ask for.
                answers = load.answers(every, AUTO, self._settings.callers)
                if is_first:
                    trials.keep(_FIRST, self._first(load, answers, plain).rows())
                for number in one_by_one(missing, "levels", "rounds"):
                    trials.keep(_round_name(number), [asdict(self._round(load, tenants, number))])
        rounds = [row for number in numbers for row in trials.find(_round_name(number)) or []]
        return trials.find(_FIRST) or [], [Round(**row) for row in rounds]

    def _plain_answers(self) -> Answers:
        with self._served(has_ladders=False) as (load, tenants):
            every = tenants.every_text(np.random.default_rng(self._settings.seed))
            return load.alone(every[: self._settings.compared_texts], [AUTO])[AUTO][0]

    def _first(self, load: LevelsLoad, ladder: Answers, plain: Answers) -> FirstAnswers:
        full = load.answers(list(ladder), FULL_LEVEL, self._settings.callers)
        alone = {level: answers for level, (answers, _) in load.alone(list(plain), _LEVELS).items()}
        return FirstAnswers(ladder, full, alone[AUTO], alone[FULL_LEVEL], plain)

    def _round(self, load: LevelsLoad, tenants: Tenants, number: int) -> Round:
        settings, rng = self._settings, np.random.default_rng((self._settings.seed, number))
        levels = _LEVELS if number % 2 else _LEVELS[::-1]
        alone = load.alone(tenants.drawn(settings.alone_texts, rng), levels)
        saturating = tenants.drawn(settings.saturated_texts, rng)
        rows_per_s = {level: load.rows_per_s(saturating, level, settings.in_flight) for level in levels}
        at_s = poisson_times_s(settings.load * rows_per_s[FULL_LEVEL], settings.load_s, rng)
        loading = tenants.drawn(len(at_s), rng)
        loaded = {level: load.loaded(loading, at_s, level) for level in levels}
        return Round({level: took_ms for level, (_, took_ms) in alone.items()}, loaded, rows_per_s)

    @contextmanager
    def _served(self, has_ladders: bool) -> Iterator[tuple[LevelsLoad, Tenants]]:
        """Serve copies of the hPLMs from a home that has computed nothing yet, with the default export."""
        with tempfile.TemporaryDirectory(prefix="hplm-bench-") as work:
            home = copied_home(self._home.path, Path(work) / "home")
            hplms = add_tenants(home, self._models, self._settings.tenants, has_ladders)
            render_repository(home.repository, export_settings())
            config = ServerConfig(repository=home.repository, environment={"HPLM_HOME": str(home.path)})
            with TritonServer(config) as server:
                yield LevelsLoad(server), Tenants(hplms, self._tests)


def figures_of(first: Sequence[Mapping[str, Any]], rounds: Sequence[Round], tasks: int) -> dict[str, float]:
    alone = sum(row["alone"] for row in first)
    return {
        "drop_points_mean": mean(_drop(row) for row in first),
        "worst_drop_points": max(_drop(row) for row in first),
        "lone_latency_ratio": median(each.alone_ratio() for each in rounds),
        "latency_ratio_at_0_8": median(each.loaded_ratio() for each in rounds),
        "rows_per_s_ratio": median(each.rate_ratio() for each in rounds),
        "p99_ratio_lone": median(each.p99_ratio() for each in rounds),
        "same_level_share": sum(row["same level"] for row in first) / alone,
        "full_same_label_share": sum(row["same label"] for row in first) / alone,
        "answered_early_mean": mean(row["early"] / row["texts"] for row in first),
        "tasks_with_ladder_share": len(first) / tasks,
        "inexact_answers": float(sum(row["inexact"] for row in first)),
        "full_rows_per_s": median(each.rows_per_s[FULL_LEVEL] for each in rounds),
    }


def _drop(row: Mapping[str, Any]) -> float:
    return 100.0 * float(row["harmed"] - row["helped"]) / float(row["texts"])


def _drop_error(row: Mapping[str, Any]) -> float:
    """Return the standard error of a task's drop, in points."""
    texts = float(row["texts"])
    variance = float(row["harmed"] + row["helped"]) / texts - (_drop(row) / 100.0) ** 2
    return 100.0 * math.sqrt(max(0.0, variance) / texts)


def table(
    tasks: Sequence[LadderedTask], first: Sequence[Mapping[str, Any]], rounds: Sequence[Round]
) -> list[dict[str, Any]]:
    """One row for each task: what was selected and promised, and what was measured."""
    of_task = {row["task"]: row for row in first}
    return [
        {"task": task.name, "select s": task.select_s}
        | ({"no ladder": task.reason} if not task.found else _laddered_row(task, of_task[task.name], rounds))
        for task in sorted(tasks, key=lambda task: not task.found)
    ]


def _laddered_row(task: LadderedTask, row: Mapping[str, Any], rounds: Sequence[Round]) -> dict[str, Any]:
    found, texts = task.found, row["texts"]
    alone, loaded = [each.alone_ms for each in rounds], [each.loaded_ms for each in rounds]
    times = {
        f"{name} ms, {level}": median(mean(by_level[level][task.name]) for by_level in of_rounds)
        for name, of_rounds in (("alone", alone), ("loaded", loaded))
        for level in _LEVELS
    }
    return {
        "after": found["after"],
        "layers": found["layers"],
        "threshold": found["threshold"],
        "certified on": found["certified_on"],
        "answered early, promised": found["answered_early"],
        "answered early": row["early"] / texts,
        "kept tokens": found.get("kept_tokens"),
        "drop promised": 100 * found["bound"],
        "drop": _drop(row),
        "drop error": _drop_error(row),
        "full": 100 * row["full right"] / texts,
        "ladder": 100 * row["full right"] / texts - _drop(row),
        "texts": texts,
        **times,
    }


@contextmanager
def _folder(trials: Path | None) -> Iterator[Path]:
    if trials is not None:
        yield trials.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        yield Path(folder)


def _tuning_home(original: Path, path: Path) -> Home:
    """Copy a home, unless an earlier run has done that, to tune hPLMs in it for the default export."""
    if not path.exists():
        # Under another name until it is whole.
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        copied_home(original, staged).path.rename(path)
    home = Home(path)
    render_repository(home.repository, export_settings())
    return home


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, default=Path("demo_home"), help="a home with a root; keeps tunings")
    arguments.add_argument("--root", default="minilm", help="the root")
    arguments.add_argument("--data", type=Path, required=True, help="a folder with tasks/")
    arguments.add_argument("--tasks", nargs="+", help="folders of it; no regressions [all; two if quick]")
    arguments.add_argument("--trials", type=Path, help="folder that keeps hPLMs and rounds")
    arguments.add_argument("--rounds", type=int, help="rounds in all, those that are kept among them")


def _task_names(options: Namespace) -> list[str]:
    if options.tasks:
        return list(options.tasks)
    names = labelled_task_names(options.data)
    return [name for name in names if name in _QUICK_TASKS] or names if options.quick else names


@bench(
    "levels",
    bars={
        "drop_points_mean": at_most(0.3),
        "lone_latency_ratio": at_most(0.85),
        "latency_ratio_at_0_8": at_most(0.6),
        "rows_per_s_ratio": at_least(1.25),
        "p99_ratio_lone": at_most(1.05),
        "same_level_share": at_least(0.999),
        "full_same_label_share": at_least(1),
    },
    add_options=add_options,
    quick_s=QUICK_LOADS_S,
)
def levels(options: Namespace) -> Result:
    if options.rounds is not None and options.rounds < 1:
        raise InvalidArgumentError("--rounds is at least 1")
    settings = QUICK if options.quick else FULL
    settings = replace(settings, rounds=options.rounds or settings.rounds, seed=options.seed)
    names, original = _task_names(options), options.home.absolute()
    tuned = {
        "root": RootFolder(Home(original).root(options.root)).fingerprint,
        "data": {name: task_checksums(options.data, name) for name in task_names(options.data)},
        **{name: getattr(settings, name) for name in ("train_texts", "dev_texts", "test_texts", "epochs", "max_drop")},
    }
    played = {name: value for name, value in asdict(settings).items() if name != "rounds"}
    with _folder(options.trials) as folder:
        of_hplms = Trials(folder, tuned)
        of_rounds = Trials(folder, {**tuned, **played, "tasks": sorted(names), "machine": machine()})
        home = _tuning_home(original, folder / f"home-{of_hplms.key}")
        tuning = replace(TuneSettings.defaults(is_taught=False), epochs=settings.epochs)
        making = LadderedTasks(home, SharedTunings(Home(original), options.root, tuning), _target(settings), of_hplms)
        caps = Caps(settings.train_texts, settings.dev_texts, settings.test_texts)
        cut = {name: cut_task(options.data, name, caps, home.path / "cache" / "cut") for name in names}
        tasks = [making.made(name, cut[name]) for name in names]
        first, rounds = Bench(home, tasks, cut, settings).measured(of_rounds)
    described = {**asdict(settings), "root": options.root, "certainty": _target(settings).certainty}
    return Result(described, figures_of(first, rounds, len(tasks)), table(tasks, first, rounds))


def _target(settings: Settings) -> Target:
    return Target.of(max_drop=settings.max_drop)


if __name__ == "__main__":
    levels.main()
