"""Is a tenant's hPLM as good as a fine-tuned model of its own?

For every task of a data folder, the schemes of `bench.tasks.schemes` on one pretrained model: same splits, same loop,
same epochs at most, several seeds. The root is built first where the home has none. Every trial that is done stays in
the file of `--trials`, and the same command goes on where it was.

What the schemes do not do alike:
- `hplm` learns from a dedicated teacher, which also answers unlabelled texts: for four tasks (bc5cdr, csabstruct,
  ncbi-disease, sci-cite) sentences of their own fields, which `dedicated` never reads.
- Epochs are `--epochs` for all but `dedicated` (its own number) and `hplm` (a third, as its teacher multiplies the
  texts); patience is as long, so no scheme stops early. `hplm create` has other defaults for both.
- Scores of hPLMs are of exact states (`--missing compute`); tables that lack fragments answer less well.
- Learning rates are one for each scheme, searched for none.
"""

from __future__ import annotations

import json
import math
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any

from backends.errors import ConflictError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.geometry import FRAGMENT_SIZES
from backends.root.store import RootFolder
from bench.kit.entry import Result, bench
from bench.tasks.data import Caps, task_names, write_demo_tasks, write_everyday
from bench.tasks.picture import draw_quality
from bench.tasks.results import Results
from bench.tasks.schemes import SCHEMES, Outcome, Schemes, Trial, Workspace
from builder.construct.hplm.dedicated import FINE_TUNING
from builder.construct.root.distilled import seconds_in_all
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
        "shared": TuneSettings(learning_rate=1e-2),
        "adapter": TuneSettings(),
        "plot": TuneSettings(learning_rate=2e-4, head_learning_rate=1e-3),
        "untaught": TuneSettings(),
        "hplm": TuneSettings(),
    }
)
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


@dataclass(frozen=True)
class Plan:
    """All trials of one run of the bench."""

    tasks: tuple[str, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int
    states_weight: float = SETTINGS["hplm"].states_weight

    def trials(self) -> list[Trial]:
        return [
            Trial(task, scheme, self._settings(scheme, seed))
            for seed, task, scheme in product(self.seeds, self.tasks, self.schemes)
        ]

    def _settings(self, scheme: str, seed: int) -> TuneSettings:
        epochs = self._epochs(scheme)
        settings = replace(SETTINGS[scheme], seed=seed, epochs=epochs, patience=epochs)
        return replace(settings, states_weight=self.states_weight) if scheme == "hplm" else settings

    def _epochs(self, scheme: str) -> int:
        """A teacher's texts are six times as many as the examples, so a third of the passes do.

        Who is compared with teachers has as many as these.
        """
        if scheme == "dedicated":
            return FINE_TUNING.epochs
        return math.ceil(self.epochs / 3) if scheme == "hplm" else self.epochs


@dataclass(frozen=True)
class RunTrial:
    """Runs trials in whatever process it is sent to."""

    workspace: Workspace

    def __call__(self, trial: Trial) -> tuple[Trial, Outcome]:
        title = f"{trial.task} {trial.scheme} seed {trial.settings.seed}"
        return trial, _schemes(self.workspace).run(trial, progress_lines(title, _LINE_EVERY_S))


@lru_cache(maxsize=1)
def _schemes(workspace: Workspace) -> Schemes:
    return Schemes(workspace)


def run_trials(
    workspace: Workspace, results: Results, trials: Sequence[Trial], workers: int
) -> Iterator[tuple[Trial, Outcome]]:
    """What is done already first, then what is still to do, unless there are no workers."""
    waiting = []
    for trial in trials:
        if outcome := results.find(trial):
            yield trial, outcome
        else:
            waiting.append(trial)
    if not workers:
        return
    for number, (trial, outcome) in enumerate(local_map(workers)(RunTrial(workspace), waiting), start=1):
        results.keep(trial, outcome)
        done = f"{trial.task} {trial.scheme} seed {trial.settings.seed}: {outcome.metric} {outcome.test}"
        print(f"{number}/{len(waiting)}  {done}", file=sys.stderr, flush=True)
        yield trial, outcome


def figures_and_rows(plan: Plan, found: Mapping[Trial, Outcome]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Means over the tasks that every scheme was tried on, and a row for each with mean and deviation.

    Of the seeds that both sides of the gap have; what stands beside them may have fewer of these.
    """
    points: dict[tuple[str, str], dict[int, float]] = {}
    metrics: dict[str, str] = {}
    for trial, outcome in found.items():
        points.setdefault((trial.task, trial.scheme), {})[trial.settings.seed] = outcome.test
        metrics[trial.task] = outcome.metric
    sides = [scheme for scheme in plan.schemes if scheme in _SIDES_OF_THE_GAP] or plan.schemes
    values: dict[tuple[str, str], list[float]] = {}
    for task, scheme in product(plan.tasks, plan.schemes):
        seeds = set.intersection(*(set(points.get((task, side), ())) for side in (*sides, scheme)))
        values[task, scheme] = [points[task, scheme][seed] for seed in sorted(seeds)]
    tasks = [task for task in plan.tasks if all(values[task, scheme] for scheme in plan.schemes)]
    if not tasks:
        raise NotFoundError("no task has been tried with all of these schemes yet")
    rows = [
        {
            "task": task,
            "metric": metrics[task],
            **{scheme: _mean_and_deviation(values[task, scheme]) for scheme in plan.schemes},
            "seeds": _seeds_shown({scheme: len(values[task, scheme]) for scheme in plan.schemes}),
        }
        for task in tasks
    ]
    means = {scheme: mean(mean(values[task, scheme]) for task in tasks) for scheme in plan.schemes}
    figures = {f"mean_{scheme}": round(value, 3) for scheme, value in means.items()}
    if {*_SIDES_OF_THE_GAP} <= set(plan.schemes):
        dedicated, hplm = _SIDES_OF_THE_GAP
        gaps = [mean(values[task, dedicated]) - mean(values[task, hplm]) for task in tasks]
        figures |= {"mean_gap": round(mean(gaps), 3), "worst_gap": round(max(gaps), 3)}
    return figures, rows


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


def _require_n(workspace: Workspace, wanted: int | None) -> None:
    """A root that was there already, as the demo's is, has the n that it was built with."""
    n = RootFolder(Home(workspace.home).root(workspace.root)).geometry.n
    if wanted not in (None, n):
        raise ConflictError(f"root {workspace.root!r} has n = {n}, not {wanted}; name another with --root, and --data")


def _rates(settings: TuneSettings) -> dict[str, float | None]:
    """What differs between the schemes."""
    return {"learning_rate": settings.learning_rate, "head_learning_rate": settings.head_learning_rate}


def add_options(options: ArgumentParser) -> None:
    options.add_argument("--data", type=Path, help="folder with corpora/ and tasks/; the demo's own texts without it")
    options.add_argument("--home", type=Path, default=Path("build/quality/home"))
    options.add_argument("--root", default="minilm", help="root in that home; built when it is not there")
    options.add_argument("--source", default=demo_root.SOURCE, help="pretrained model of a root that is to be built")
    options.add_argument("--lower", type=int, default=3, help="its lower layers")
    options.add_argument("--n", type=int, choices=FRAGMENT_SIZES, help=f"tokens of its fragments ({_DEFAULT_N})")
    options.add_argument("--steps", type=int, default=_DISTILLATION.steps, help="its distillation steps")
    options.add_argument("--cache", type=Path, default=Path("build/quality"), help="where trials and states stay")
    options.add_argument("--trials", type=Path, help="file that keeps what was measured (trials.jsonl in --cache)")
    options.add_argument("--report", action="store_true", help="try nothing more; report what was measured so far")
    options.add_argument("--tasks", nargs="+", metavar="TASK", help="only these")
    options.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    options.add_argument("--seeds", type=int, default=2, help="how many seeds, from --seed on")
    options.set_defaults(seed=_FIRST_SEED)
    options.add_argument("--epochs", type=int, default=6, help=f"of all but dedicated, which has {FINE_TUNING.epochs}")
    weight = SETTINGS["hplm"].states_weight
    options.add_argument("--states-weight", type=float, default=weight, help="of hplm; 0: its teacher only answers")
    options.add_argument("--cap", type=int, default=5000, help="training examples at most; 0 for all")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="trials at once, one thread each")


@bench("quality", add_options=add_options)
def quality(arguments: Namespace) -> Result:
    caps = Caps(train=96, dev=32, test=64) if arguments.quick else Caps(train=arguments.cap or None)
    data = arguments.data or write_demo_tasks(arguments.cache / "demo_tasks")
    workspace = Workspace(data.absolute(), arguments.home, arguments.root, arguments.cache, caps)
    if arguments.data is None:
        ensure_demo_root(workspace)
    else:
        ensure_root(workspace, arguments.source, arguments.lower, arguments.n or _DEFAULT_N, arguments.steps)
    _require_n(workspace, arguments.n)
    tasks = tuple(arguments.tasks or task_names(data))
    if arguments.quick:
        tasks = tasks[:2]
    seeds = tuple(arguments.seed + number for number in range(1 if arguments.quick else arguments.seeds))
    epochs = 1 if arguments.quick else arguments.epochs
    plan = Plan(tasks, tuple(arguments.schemes), seeds, epochs, arguments.states_weight)
    results = Results(workspace, arguments.trials or arguments.cache / "trials.jsonl")
    found = dict(run_trials(workspace, results, plan.trials(), 0 if arguments.report else arguments.workers))
    figures, rows = figures_and_rows(plan, found)
    root = RootFolder(Home(workspace.home).root(workspace.root))
    settings = {
        "root": arguments.root,
        "source": root.manifest.origin["source"],
        "split": f"{root.geometry.num_lower_layers} + {root.geometry.num_upper_layers}",
        "n": root.geometry.n,
        "K": root.geometry.num_lower_layers,
        "final_cosine": root.manifest.fidelity.get("final_cosine"),
        "corpora": ", ".join(Path(path).stem for path in root.manifest.origin["config"]["corpus"]),
        "distillation_seconds": seconds_in_all(root.manifest.origin),
        "train_cap": caps.train,
        "seeds": len(plan.seeds),
        "trials": len(found),
        "epochs": plan.epochs,
        "states_weight": plan.states_weight,
        "dtype": "bf16 autocast",
        "rates": json.dumps({scheme: _rates(SETTINGS[scheme]) for scheme in plan.schemes}),
        "adapters": json.dumps(asdict(SETTINGS["hplm"].recipe)),
    }
    if arguments.json is not None:
        draw_quality(rows, plan.schemes, arguments.json.with_suffix(".svg"))
    return Result(settings, figures, rows)


if __name__ == "__main__":
    quality.main()
