"""What do early answers save in latency and throughput, as served, and how many points of accuracy do they cost?

For each task an hPLM is tuned with the settings of `hplm create`, and then until its lower layers answer too, in the
home, where other benches find it. Its ladder is selected in a copy: the dev texts, which have also chosen the hPLM's
epoch, certify that `max_drop` points at most are lost. `kept tokens` is of ladders that leave out words of texts that
go on. Copies of the hPLMs that got a ladder go to `tenants` tenants on one real server with the default export. Each
test text is asked once without a level and once for `full`; the first answers, for which the server has computed
nothing yet, are judged. Then, in each round, some texts are asked, so that what tables lack of them is computed, and
requests for these are played for `full` and without a level, in turns: alone, until nothing more fits, by Poisson
arrivals at `load` of what `full` bears, and at `overload` times that, with deadlines in 5 to 20 times what 64 rows
take, where rows settle for early answers before any is rejected. Ratios are medians over the rounds; `accuracy_2x` is
of all that was answered under the overload, `right_2x_over_full` counts right answers.

`same_level_share` compares levels in company with those alone. `full_same_label_share` compares labels of the level
`full`, each asked alone, with a server whose hPLMs have no ladders. Tuned hPLMs and measured rounds are kept in
`--trials`, and the same command goes on with what is not there.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.root.store import RootFolder
from backends.stack_key import FULL as FULL_LEVEL
from backends.wire import AUTO
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.progress import one_by_one
from bench.kit.report import machine
from bench.kit.scratch_home import copied_home
from bench.kit.trials import Trials
from bench.tasks.cut import CutTask, cut_task
from bench.tasks.data import Caps, labelled_task_names, task_checksums, task_names
from bench.tasks.laddered import LadderedTask, LadderedTasks, add_tenants, task_of
from bench.tasks.levels_figures import LEVELS, FirstAnswers, Round, figures_of, table
from bench.tasks.levels_load import Answers, LevelsLoad, Question, Tenants, poisson_times_s
from bench.tasks.shared_tuning import SHARED_TRAIN_TEXTS, SharedTunings
from builder.export.repository import render_repository
from builder.levels.target import Target
from builder.serving import ServerConfig, TritonServer
from builder.settings.hplm import TuneSettings
from cli.export import export_settings
from workload.deadlines import UniformDeadlines

_EDITION = 3
"""Version of the kept hPLMs and rounds. Raise it when what is measured changes."""


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
    overload_s: float
    load: float = 0.8
    overload: float = 2.0
    batch: int = 64
    deadlines_in_batches: tuple[int, int] = (5, 20)
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
    overload_s=15.0,
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
    overload_s=4.0,
)
_QUICK_TASKS = ("csabstruct", "sst2")
_FIRST = "first"


def _again(questions: Sequence[Question], count: int, rng: np.random.Generator) -> list[Question]:
    return [questions[index] for index in rng.integers(len(questions), size=count)]


def _round_name(number: int) -> str:
    return f"round-{number}"


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
                if is_first:
                    every = tenants.every_text(np.random.default_rng(self._settings.seed))
                    answers = load.answers(every, AUTO, self._settings.callers)
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
        alone = {level: answers for level, (answers, _) in load.alone(list(plain), LEVELS).items()}
        return FirstAnswers(ladder, full, alone[AUTO], alone[FULL_LEVEL], plain)

    def _round(self, load: LevelsLoad, tenants: Tenants, number: int) -> Round:
        settings, rng = self._settings, np.random.default_rng((self._settings.seed, number))
        levels = LEVELS if number % 2 else LEVELS[::-1]
        asked = tenants.drawn(settings.saturated_texts, rng)
        # A server forgets fragments that it has computed for other texts; the level that came first would pay for them.
        load.answers(asked, FULL_LEVEL, settings.callers)
        alone = load.alone(asked[: settings.alone_texts], levels)
        rows_per_s = {level: load.rows_per_s(asked, level, settings.in_flight) for level in levels}
        at_s = poisson_times_s(settings.load * rows_per_s[FULL_LEVEL], settings.load_s, rng)
        loading = _again(asked, len(at_s), rng)
        loaded = {level: load.loaded(loading, at_s, level) for level in levels}
        overloaded = self._overloaded(load, asked, rows_per_s[FULL_LEVEL], levels, rng)
        return Round({level: took_ms for level, (_, took_ms) in alone.items()}, loaded, rows_per_s, overloaded)

    def _overloaded(
        self,
        load: LevelsLoad,
        questions: Sequence[Question],
        rows_per_s: float,
        levels: Sequence[str],
        rng: np.random.Generator,
    ) -> dict[str, dict[str, int]]:
        settings = self._settings
        at_s = poisson_times_s(settings.overload * rows_per_s, settings.overload_s, rng)
        batch_ms = 1e3 * settings.batch / rows_per_s
        deadlines = UniformDeadlines(*(max(1, round(count * batch_ms)) for count in settings.deadlines_in_batches))
        asked, deadlines_ms = _again(questions, len(at_s), rng), deadlines.draw_ms(len(at_s), rng)
        return {level: asdict(load.overloaded(asked, at_s, deadlines_ms, level)) for level in levels}

    @contextmanager
    def _served(self, has_ladders: bool) -> Iterator[tuple[LevelsLoad, Tenants]]:
        """Serve copies of the hPLMs from a home that has computed nothing yet, with the default export."""
        with tempfile.TemporaryDirectory(prefix="hplm-bench-") as work:
            home = copied_home(self._home.path, Path(work) / "home")
            hplms = add_tenants(home, self._models, self._settings.tenants, has_ladders)
            render_repository(home.repository, export_settings())
            config = ServerConfig(repository=home.repository, environment={"HPLM_HOME": str(home.path)})
            with TritonServer(config) as server:
                yield LevelsLoad(server.grpc_url), Tenants(hplms, self._tests)


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
        "edition": _EDITION,
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
