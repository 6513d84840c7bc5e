"""Is a tenant's hPLM as good as a fine-tuned model of its own?

For every task of a data folder, the schemes of `bench.tasks.schemes` on one pretrained model, with the settings that
users get by default. The root is built first where the home has none. Each trial that is done is a file in the folder
of `--trials`, and the same command goes on with those that are not. With `--report` it needs that folder alone.

- For a task `hplm` reads no texts without labels, since `dedicated` could not use any. The root has read plain texts:
  everyday ones, among them those of four tasks, and texts of the domains.
- The hPLMs are made by `hplm create` and measured with every fragment that their tables lack computed, as a server with
  `--missing compute` has it the first time.
- The gap is that of dedicated model and hPLM of the same seeds. Its intervals are paired: they say what other test
  texts might have given, and not what other seeds might have.
- Learning rates are one for each scheme, searched for none.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import groupby, product
from pathlib import Path
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any

from backends.errors import ConflictError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.geometry import FRAGMENT_SIZES
from backends.root.store import RootFolder
from bench.kit.entry import Result, at_most, bench
from bench.tasks.data import Caps, task_names, write_demo_tasks, write_everyday
from bench.tasks.gaps import ENTITY_METRIC, Gap
from bench.tasks.outcome import Outcome
from bench.tasks.picture import draw_quality
from bench.tasks.results import Results, kept_outcomes, kept_root
from bench.tasks.schemes import SCHEMES, Schemes, Trial, Workspace
from builder.construct.hplm.dedicated import FINE_TUNING
from builder.construct.root.roots import add_root
from builder.executors.processes import local_map
from builder.progress import progress_bars, progress_lines
from builder.requests.roots import AddRoot
from builder.settings.domain import PlotSettings
from builder.settings.hplm import TuneSettings
from builder.settings.root import DistilSettings
from demo import root as demo_root

SETTINGS: Mapping[str, TuneSettings] = MappingProxyType(
    {
        "dedicated": FINE_TUNING,
        "shared": replace(TuneSettings.defaults(is_taught=False), learning_rate=1e-2),
        "adapter": TuneSettings.defaults(is_taught=False),
        "plot": replace(TuneSettings.defaults(is_taught=False), learning_rate=2e-4, head_learning_rate=1e-3),
        "untaught": TuneSettings.defaults(is_taught=False),
        "hplm": TuneSettings.defaults(is_taught=True),
    }
)
TWICE = frozenset(("chemprot", "csabstruct", "mrpc", "ncbi-disease", "sciie-relations"))
"""Tasks with two seeds: their results differ most between seeds."""
BARS = {"mean_gap": at_most(0.9)}
_DEFAULT_N = 3
_FIRST_SEED = 1
_LINE_EVERY_S = 30.0
_SIDES_OF_THE_GAP = ("dedicated", "hplm")
_FOREIGN = ("general.txt", "wikitext2-test.txt")
_DISTILLATION = DistilSettings(
    steps=3000,
    learning_rate=5e-4,
    train_upper=True,
    upper_learning_rate=1.5e-4,
    bigram_share=0.12,
    unigram_share=0.08,
)
Outcomes = Mapping[Trial, Outcome]


@dataclass(frozen=True)
class Plan:
    """All trials of one run of the bench.

    Args:
        tasks: Their names.
        schemes: Tried on each task, in this order.
        first_seed: Of each task.
        num_seeds: Of each task; by default two of those in `TWICE` and one of the others.
        epochs: Of every scheme, for a run that only shows that it works; by default each scheme has its own.
    """

    tasks: tuple[str, ...]
    schemes: tuple[str, ...]
    first_seed: int = _FIRST_SEED
    num_seeds: int | None = None
    epochs: int | None = None

    def trials(self) -> list[Trial]:
        """List the trials with the first seed of all tasks first."""
        seeds = {task: self._seeds(task) for task in self.tasks}
        every = sorted({seed for of_task in seeds.values() for seed in of_task})
        return [
            Trial(task, scheme, self._settings(scheme, seed))
            for seed, task, scheme in product(every, self.tasks, self.schemes)
            if seed in seeds[task]
        ]

    def _seeds(self, task: str) -> range:
        count = self.num_seeds or (2 if task in TWICE else 1)
        return range(self.first_seed, self.first_seed + count)

    def _settings(self, scheme: str, seed: int) -> TuneSettings:
        settings = replace(SETTINGS[scheme], seed=seed)
        return settings if self.epochs is None else replace(settings, epochs=self.epochs)


@dataclass(frozen=True)
class RunTrials:
    """Runs the trials of one task and seed in whatever process it is sent to; an hPLM learns of the model before it."""

    workspace: Workspace
    folder: Path

    def __call__(self, trials: Sequence[Trial]) -> list[tuple[Trial, Outcome]]:
        return [(trial, self._run(trial)) for trial in trials]

    def _run(self, trial: Trial) -> Outcome:
        report = progress_lines(trial.name, _LINE_EVERY_S)
        outcome = _schemes(self.workspace).run(trial, report)
        Results(self.workspace, self.folder).keep(trial, outcome)
        return outcome


@lru_cache(maxsize=1)
def _schemes(workspace: Workspace) -> Schemes:
    return Schemes(workspace)


def run_trials(
    workspace: Workspace, folder: Path, trials: Sequence[Trial], workers: int
) -> Iterator[tuple[Trial, Outcome]]:
    """Yield what is done already first, then what is still to do."""
    results, waiting = Results(workspace, folder), []
    for trial in trials:
        if outcome := results.find(trial):
            yield trial, outcome
        else:
            waiting.append(trial)
    if not waiting:
        return
    groups = [list(group) for _, group in groupby(waiting, lambda trial: (trial.settings.seed, trial.task))]
    done = 0
    for outcomes in local_map(workers)(RunTrials(workspace, folder), groups):
        for trial, outcome in outcomes:
            done += 1
            said = f"{trial.name}: {outcome.metric} {outcome.test}, {outcome.seconds:.0f} s"
            print(f"{done}/{len(waiting)}  {said}", file=sys.stderr, flush=True)
            yield trial, outcome


def figures_and_rows(plan: Plan, found: Outcomes) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the means over the tasks that every scheme was tried on, and a row for each task.

    They are of the seeds that both sides of the gap have; other schemes may have fewer of these.
    """
    by_task = {task: _of_task(plan, found, task) for task in plan.tasks}
    tried = {task: outcomes for task, outcomes in by_task.items() if all(outcomes.values())}
    if not tried:
        raise NotFoundError("no task has been tried with all of these schemes yet")
    rows = [_row(task, outcomes) for task, outcomes in tried.items()]
    means = {scheme: mean(_test(of_task[scheme]) for of_task in tried.values()) for scheme in plan.schemes}
    figures = {f"mean_{scheme}": round(value, 3) for scheme, value in means.items()}
    if not {*_SIDES_OF_THE_GAP} <= set(plan.schemes):
        return figures, rows
    gaps = {task: Gap.of(task, *(outcomes[side] for side in _SIDES_OF_THE_GAP)) for task, outcomes in tried.items()}
    for row in rows:
        row["gap (95 %)"] = str(gaps[row["task"]])
    entities = [row["task"] for row in rows if row["metric"] == ENTITY_METRIC]
    groups = {"NER": entities, "the others": [task for task in gaps if task not in entities], "all": list(gaps)}
    of_groups = {name: Gap.mean([gaps[task] for task in tasks]) for name, tasks in groups.items() if tasks}
    for name, gap in of_groups.items():
        shown = {scheme: f"{mean(_test(tried[task][scheme]) for task in groups[name]):.2f}" for scheme in plan.schemes}
        rows.append({"task": f"mean of {name}", "metric": "", **shown, "seeds": "", "gap (95 %)": str(gap)})
    low, high = of_groups["all"].interval
    named = {"mean_gap": of_groups["all"].value, "mean_gap_low": low, "mean_gap_high": high}
    named |= {f"{figure}_gap": of_groups[name].value for figure, name in _FIGURES.items() if name in of_groups}
    named["worst_gap"] = max(gap.value for gap in gaps.values())
    return {**figures, **{name: round(value, 3) for name, value in named.items()}}, rows


_FIGURES = {"ner": "NER", "others": "the others"}
Tried = Mapping[str, Sequence[Outcome]]
"""Outcomes of one task by scheme, in the order of the seeds."""


def _of_task(plan: Plan, found: Outcomes, task: str) -> Tried:
    of_seeds: dict[str, dict[int, Outcome]] = {scheme: {} for scheme in plan.schemes}
    for trial, outcome in found.items():
        if trial.task == task:
            of_seeds[trial.scheme][trial.settings.seed] = outcome
    sides = [scheme for scheme in plan.schemes if scheme in _SIDES_OF_THE_GAP] or plan.schemes
    common = set.intersection(*(set(of_seeds[side]) for side in sides))
    return {
        scheme: [outcome for seed, outcome in sorted(outcomes.items()) if seed in common]
        for scheme, outcomes in of_seeds.items()
    }


def _row(task: str, outcomes: Tried) -> dict[str, Any]:
    shown = {scheme: _mean_and_deviation([each.test for each in of_scheme]) for scheme, of_scheme in outcomes.items()}
    seeds = _seeds_shown({scheme: len(of_scheme) for scheme, of_scheme in outcomes.items()})
    return {"task": task, "metric": next(iter(outcomes.values()))[0].metric, **shown, "seeds": seeds}


def _test(outcomes: Sequence[Outcome]) -> float:
    return mean(outcome.test for outcome in outcomes)


def _seeds_shown(seeds: Mapping[str, int]) -> str:
    """The most that a scheme has, and which have fewer."""
    most = max(seeds.values())
    fewer = [f"{scheme} {count}" for scheme, count in seeds.items() if count < most]
    return f"{most} ({', '.join(fewer)})" if fewer else str(most)


def _mean_and_deviation(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def ensure_root(workspace: Workspace, source: str, lower: int, n: int, steps: int) -> None:
    """Distil the root on the data folder's corpora, but for those kept to measure it on, and on everyday texts.

    The corpora are of the sciences: a root that knows nothing else is hardly faithful to its model elsewhere.
    """
    registry = Registry.open(Home(workspace.home), create=True)
    if registry.has_root(workspace.root):
        return
    files = sorted((workspace.data / "corpora").glob("*.txt"))
    everyday = write_everyday(workspace.data, workspace.cache)
    request = AddRoot(
        name=workspace.root,
        source=source,
        lower=lower,
        corpus=[*(path for path in files if path.name not in _FOREIGN), *([everyday] if everyday else [])],
        held_out=[path for path in files if path.name in _FOREIGN],
        n=n,
        distil=replace(_DISTILLATION, steps=steps),
        plot=PlotSettings(max_fragments=400_000, max_bigrams=200_000),
    )
    with progress_bars(workspace.root) as report:
        add_root(Home(workspace.home), registry, request, report)


def ensure_demo_root(workspace: Workspace) -> None:
    """The demo's root with a table of nothing much: the bench computes every fragment."""
    registry = Registry.open(Home(workspace.home), create=True)
    if not registry.has_root(workspace.root):
        plot = PlotSettings(max_fragments=1000, max_bigrams=1000)
        request = demo_root.root_request(workspace.data / "general.txt", demo_root.DISTILLED, plot)
        with progress_bars(workspace.root) as report:
            add_root(Home(workspace.home), registry, request, report)


def _ensure_root(workspace: Workspace, arguments: Namespace) -> None:
    if arguments.data is None:
        ensure_demo_root(workspace)
    else:
        ensure_root(workspace, arguments.source, arguments.lower, arguments.n or _DEFAULT_N, arguments.steps)
    _require_n(workspace, arguments.n)


def _require_n(workspace: Workspace, wanted: int | None) -> None:
    """A root that was there already, as the demo's is, has the n that it was built with."""
    n = RootFolder(Home(workspace.home).root(workspace.root)).geometry.n
    if wanted not in (None, n):
        raise ConflictError(f"root {workspace.root!r} has n = {n}, not {wanted}; name another with --root, and --data")


def _differences(settings: TuneSettings) -> dict[str, Any]:
    """Return what differs between the schemes."""
    named = ("epochs", "patience", "learning_rate", "head_learning_rate", "dropout")
    return {name: getattr(settings, name) for name in named}


def add_options(options: ArgumentParser) -> None:
    options.add_argument("--data", type=Path, help="folder with corpora/ and tasks/; the demo's own texts without it")
    options.add_argument("--home", type=Path, default=Path("build/quality/home"))
    options.add_argument("--root", default="minilm", help="root in that home; built when it is not there")
    options.add_argument("--source", default=demo_root.SOURCE, help="pretrained model of a root that is to be built")
    options.add_argument("--lower", type=int, default=3, help="its lower layers")
    options.add_argument("--n", type=int, choices=FRAGMENT_SIZES, help=f"tokens of its fragments ({_DEFAULT_N})")
    options.add_argument("--steps", type=int, default=_DISTILLATION.steps, help="its distillation steps")
    options.add_argument("--cache", type=Path, default=Path("build/quality"), help="where cut tasks and states stay")
    options.add_argument("--trials", type=Path, help="folder that keeps what was measured (trials in --cache)")
    options.add_argument("--report", action="store_true", help="try nothing; report what the folder of --trials has")
    options.add_argument("--tasks", nargs="+", metavar="TASK", help="only these")
    options.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(_SIDES_OF_THE_GAP))
    options.add_argument("--seeds", type=int, help="seeds of each task, from --seed on (2 of five tasks, 1 of others)")
    options.set_defaults(seed=_FIRST_SEED)
    options.add_argument("--cap", type=int, default=5000, help="training examples at most; 0 for all")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="tasks at once, one thread each")


@bench("quality", bars=BARS, add_options=add_options)
def quality(arguments: Namespace) -> Result:
    caps = Caps(train=32, dev=32, test=64) if arguments.quick else Caps(train=arguments.cap or None)
    data = arguments.data or write_demo_tasks(arguments.cache / "demo_tasks")
    workspace = Workspace(data.absolute(), arguments.home, arguments.root, arguments.cache, caps)
    plan = _plan(arguments, tuple(arguments.tasks or task_names(data)))
    folder = arguments.trials or arguments.cache / "trials"
    if arguments.report:
        found = kept_outcomes(folder, plan.trials())
    else:
        _ensure_root(workspace, arguments)
        found = dict(run_trials(workspace, folder, plan.trials(), arguments.workers))
    figures, rows = figures_and_rows(plan, found)
    settings = {
        **kept_root(folder),
        "train_cap": caps.train,
        "trials": len(found),
        "hours": round(sum(outcome.seconds for outcome in found.values()) / 3600, 2),
        "dtype": "bf16 autocast",
        "schemes": json.dumps({scheme: _differences(SETTINGS[scheme]) for scheme in plan.schemes}),
        "adapters": json.dumps(asdict(SETTINGS["hplm"].recipe)),
    }
    if arguments.json is not None:
        of_tasks = [row for row in rows if row["metric"]]
        draw_quality(of_tasks, plan.schemes, arguments.json.with_suffix(".svg"))
    return Result(settings, figures, rows)


def _plan(arguments: Namespace, tasks: tuple[str, ...]) -> Plan:
    if arguments.quick:
        return Plan(tasks[:2], tuple(arguments.schemes), arguments.seed, num_seeds=1, epochs=1)
    return Plan(tasks, tuple(arguments.schemes), arguments.seed, arguments.seeds)


if __name__ == "__main__":
    quality.main()
