"""How good are the answers of one student, and of several, against a fine-tuned model of each task's own?

For each task and seed a dedicated model is fine-tuned, `hplm create --teacher dedicated` makes an hPLM that learns from
it, and `hplm students add` teaches this one's students. Shares are of the dedicated model's points on the test texts;
the best number of students is chosen on the dev texts. What the tables lack is computed.

Beside them, with the first seed and at the arithmetic of all students together:

- exits: one student in place of all of a chain;
- bagged: students in parallel, each of which learned by itself to say what the upper layers say;
- boosted: students in parallel, each of which learned to say what those before it do not.

A home's students are replaced. With `--trials` each trial is kept in a file as soon as it is measured, and the same
command goes on with those that are not.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from backends.adapters.bank import read_artifact
from backends.adapters.student_adapters import read_student_adapters
from backends.errors import HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from backends.storage import file_checksum, json_checksum, read_json, write_json
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, bench
from bench.quality import SETTINGS, ensure_demo_root, ensure_root
from bench.tasks.cut import CutTask, cut_task
from bench.tasks.data import Caps, task_names, write_demo_tasks
from bench.tasks.outcome import Outcome
from bench.tasks.results import Results
from bench.tasks.schemes import Schemes, Trial, Workspace
from bench.tasks.student_sets import BAGGED, BOOSTED, CHAINED, EXITS, LINE_EVERY_S, Sets
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.trainable import of_rows
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.students.add import add_students
from builder.construct.students.tunable import StudentLayers, TunableStudents, TunedStudents
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.progress import progress_lines
from builder.requests.students import AddStudents
from builder.settings.students import StudentSettings
from demo import root as demo_root

_TASKS = ("chemprot", "sciie-relations", "mrpc", "sst2", "ncbi-disease")
_BESIDE = (EXITS, BAGGED, BOOSTED)
_DEDICATED, _HPLM = "dedicated", "hplm"
_CPU = torch.device("cpu")
_EDITION = 3
"""Version of the kept trials. Raise it when what is measured changes."""


@dataclass(frozen=True)
class Settings:
    """`epochs`, where given, are those of every tuning, for a run that only shows that it works."""

    caps: Caps
    seeds: tuple[int, ...] = (1, 2)
    epochs: int | None = None
    students: StudentSettings = field(default_factory=StudentSettings)

    @property
    def tune(self) -> dict[str, Any]:
        """Changes of what `hplm students add` does by default."""
        return {} if self.epochs is None else {"epochs": self.epochs}


FULL = Settings(Caps(train=2_000))
QUICK = Settings(Caps(32, 32, 64), seeds=(1,), epochs=1, students=StudentSettings(steps=10, max_texts=300))


@dataclass(frozen=True)
class Measured:
    """The outcomes of one student, of two, and so on, and the number that is best on the dev texts."""

    outcomes: tuple[Outcome, ...]
    best: int

    @property
    def of_one(self) -> float:
        return self.outcomes[0].test

    @property
    def of_best(self) -> float:
        return self.outcomes[self.best - 1].test

    @property
    def of_all(self) -> float:
        return self.outcomes[-1].test

    def to_json(self) -> dict[str, Any]:
        return {"outcomes": [outcome.to_json() for outcome in self.outcomes], "best": self.best}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Measured:
        return cls(tuple(Outcome.from_json(outcome) for outcome in content["outcomes"]), content["best"])


class Bench:
    """One root; its hPLMs are made, and answer by each kind of students."""

    def __init__(self, workspace: Workspace, settings: Settings, corpus: Sequence[Path], trials: Path) -> None:
        self._workspace, self._settings, self._trials = workspace, settings, trials
        self._home = Home(workspace.home.absolute())
        self._root = RootFolder(self._home.root(workspace.root))
        self._schemes, self._results = Schemes(workspace), Results(workspace, trials)
        self.sets = Sets(self._home, self._root, corpus, settings.students, workspace.cache / "sets")

    def scheme(self, name: str, task: str, seed: int, kinds: Sequence[str]) -> Outcome:
        """Try a scheme of `bench.quality`; an hPLM that is gone is made anew where `kinds` are not all kept."""
        tune = replace(SETTINGS[name], seed=seed)
        trial = Trial(
            task, name, tune if self._settings.epochs is None else replace(tune, epochs=self._settings.epochs)
        )
        kept = self._results.find(trial)
        if kept is not None and (self._has_hplm(task, seed) or self._has_all(kinds, task, seed)):
            return kept
        outcome = self._schemes.run(trial, progress_lines(trial.name, LINE_EVERY_S))
        self._results.keep(trial, outcome)
        return outcome

    def students(self, kind: str, task: str, seed: int) -> Measured:
        """Teach an hPLM's students and measure them; what is kept is not measured again."""
        cut = self._cut(task)
        path = self._path(cut, kind, task, seed)
        if path.exists():
            return Measured.from_json(read_json(path)["measured"])
        student_set = self.sets.installed(kind)
        request = AddStudents(
            id=_hplm(task, seed), train=cut.files.train, dev=cut.files.dev, tune={**self._settings.tune, "seed": seed}
        )
        report = progress_lines(f"{task} {kind} seed {seed}", LINE_EVERY_S)
        entry = add_students(self._home, Registry.open(self._home), request, report)
        measured = self._measured(cut, entry, student_set)
        write_json(path, {"task": task, "kind": kind, "seed": seed, "measured": measured.to_json()})
        return measured

    def _measured(self, cut: CutTask, entry: HplmEntry, student_set: StudentSet) -> Measured:
        data = cut.read()
        objective, folder = objective_of(data), self._home.path / entry.folder
        artifact, own = read_artifact(folder, self._root.fingerprint), read_student_adapters(folder)
        if own is None:
            raise HplmError(f"{folder} has nothing for students")
        model = TunableStudents(
            StudentLayers.of(student_set, _CPU), TunedStudents(own.adapters, own.heads), artifact.pooling
        )
        report = progress_lines("test texts", LINE_EVERY_S)
        test = encoded_set(self._home, entry.domain, objective, data.test, "test", report)
        dev = [step.dev_score for step in own.steps]
        return Measured(tuple(_outcomes(model, objective, test, dev)), own.best)

    def _cut(self, task: str) -> CutTask:
        return cut_task(self._workspace.data, task, self._workspace.caps, self._workspace.cache / "tasks")

    def _path(self, cut: CutTask, kind: str, task: str, seed: int) -> Path:
        named = self._inputs(cut, self.sets.fingerprint(kind))
        return self._trials / f"{task}-students-{kind}-{seed}-{named}.json"

    def _has_all(self, kinds: Sequence[str], task: str, seed: int) -> bool:
        cut = self._cut(task)
        return all(self._path(cut, kind, task, seed).exists() for kind in kinds)

    def _inputs(self, cut: CutTask, fingerprint: str) -> str:
        """Return a name for all that a trial depends on."""
        files = [file_checksum(path) for path in (cut.files.train, cut.files.dev, cut.files.test) if path is not None]
        settings = {"caps": asdict(self._settings.caps), "epochs": self._settings.epochs}
        named = {
            "root": self._root.fingerprint,
            "set": fingerprint,
            "files": files,
            "settings": settings,
            "edition": _EDITION,
        }
        return json_checksum(named)[:12]

    def _has_hplm(self, task: str, seed: int) -> bool:
        return Registry.open(self._home).has_hplm(_hplm(task, seed))


def _hplm(task: str, seed: int) -> str:
    """Name the hPLM that `bench.tasks.schemes` makes."""
    return f"bench/{task}-{_HPLM}-{seed}"


def _outcomes(
    model: TunableStudents, objective: Objective[Any], test: EncodedSet, dev: Sequence[float]
) -> Iterator[Outcome]:
    model.train(False)
    rows = [row.chunk(len(dev), dim=-1) for row in of_rows(model.answer_each, objective, test, _CPU, None)]
    for number, of_dev in enumerate(dev):
        terms = objective.terms([row[number] for row in rows], test.targets)
        points = round(100 * float(objective.score(terms.sum(axis=0))), 3)
        yield Outcome(objective.main_metric, round(100 * of_dev, 3), points, 0, terms)


@dataclass(frozen=True)
class Trials:
    """What was measured of one task with one seed; `beside` has the kinds that were tried beside the students."""

    task: str
    seed: int
    dedicated: Outcome
    hplm: Outcome
    students: Measured
    beside: Mapping[str, Measured]

    def share(self, points: float) -> float:
        """Return points as a share of the dedicated model's, in percent."""
        return 100 * points / self.dedicated.test

    def row(self) -> dict[str, Any]:
        numbered = enumerate(self.students.outcomes, start=1)
        return {
            "task": self.task,
            "seed": self.seed,
            "metric": self.dedicated.metric,
            "dedicated": self.dedicated.test,
            "hPLM": self.hplm.test,
            **{f"students-{number}": outcome.test for number, outcome in numbered},
            "best": self.students.best,
            "share of best": self.share(self.students.of_best),
            **{kind: measured.of_all for kind, measured in self.beside.items()},
        }


def figures_of(trials: Sequence[Trials]) -> dict[str, float]:
    """Average over seeds, then over tasks."""

    def by_task(value: Callable[[Trials], float]) -> list[float]:
        tasks = dict.fromkeys(trial.task for trial in trials)
        return [mean(value(trial) for trial in trials if trial.task == task) for task in tasks]

    found = {
        "share_1": mean(by_task(lambda trial: trial.share(trial.students.of_one))),
        "share_best": mean(by_task(lambda trial: trial.share(trial.students.of_best))),
        "worst_share": min(by_task(lambda trial: trial.share(trial.students.of_best))),
        "share_hplm": mean(by_task(lambda trial: trial.share(trial.hplm.test))),
        "best_minus_1": mean(by_task(lambda trial: trial.students.of_best - trial.students.of_one)),
    }
    compared = [trial for trial in trials if trial.beside]
    for kind in compared[0].beside if compared else ():
        found[f"minus_{kind}"] = mean(trial.students.of_all - trial.beside[kind].of_all for trial in compared)
    return {name: round(value, 3) for name, value in found.items()}


def _tried(measured: Bench, tasks: Sequence[str], seeds: Sequence[int], kinds: Sequence[str]) -> Iterator[Trials]:
    """Try each kind on all tasks before the next one, since the root has one set of students at a time."""
    named = [(task, seed) for seed in seeds for task in tasks]
    taught = {seed: (CHAINED, *(kinds if seed == seeds[0] else ())) for seed in seeds}
    models = {
        # An hPLM right after the model that teaches it, which is kept only until it has answered.
        (task, seed): (measured.scheme(_DEDICATED, task, seed, ()), measured.scheme(_HPLM, task, seed, taught[seed]))
        for task, seed in named
    }
    students = {each: measured.students(CHAINED, *each) for each in named}
    beside = {kind: {task: measured.students(kind, task, seeds[0]) for task in tasks} for kind in kinds}
    for task, seed in named:
        others = {kind: of_task[task] for kind, of_task in beside.items()} if seed == seeds[0] else {}
        trials = Trials(task, seed, *models[task, seed], students[task, seed], others)
        print(trials.row(), file=sys.stderr)
        yield trials


def _add_options(options: ArgumentParser) -> None:
    options.add_argument("--data", type=Path, help="folder with corpora/ and tasks/; the demo's own texts without it")
    options.add_argument("--home", type=Path, help="a home, whose root's students are replaced (home in --cache)")
    options.add_argument("--root", default="minilm", help="root in that home; built when it is not there")
    options.add_argument("--source", default=demo_root.SOURCE, help="pretrained model of a root that is to be built")
    options.add_argument("--lower", type=int, default=3, help="its lower layers")
    options.add_argument("--steps", type=int, default=3_000, help="its distillation steps")
    options.add_argument("--corpus", type=Path, nargs="+", default=[], help="what students learn from (the root's own)")
    options.add_argument("--width", type=int, help="of the students (the root's)")
    options.add_argument("--cache", type=Path, default=Path("build/students_quality"), help="where all else stays")
    options.add_argument("--trials", type=Path, help="folder that keeps what was measured (trials in --cache)")
    options.add_argument("--tasks", nargs="+", metavar="TASK", help=f"folders of --data ({' '.join(_TASKS)})")
    options.add_argument("--seeds", type=int, nargs="+", help="of the tunings (1 2)")
    options.add_argument("--beside", nargs="*", choices=_BESIDE, default=_BESIDE, help="kinds to compare with (all)")


@bench(
    "students_quality",
    quick_s=QUICK_LOADS_S,
    add_options=_add_options,
    bars={"share_1": at_least(95.25), "share_best": at_least(96.31), "worst_share": at_least(90)},
)
def students_quality(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    students = replace(settings.students, width=options.width)
    settings = replace(settings, seeds=tuple(options.seeds or settings.seeds), students=students)
    cache = options.cache / "quick" if options.quick else options.cache
    data = options.data or write_demo_tasks(cache / "demo_tasks")
    tasks = options.tasks or (_TASKS if options.data else task_names(data))
    workspace = Workspace(data.absolute(), options.home or cache / "home", options.root, cache, settings.caps)
    if options.data is None:
        ensure_demo_root(workspace)
    else:
        ensure_root(workspace, options.source, options.lower, 3, options.steps)
    measured = Bench(workspace, settings, options.corpus, options.trials or cache / "trials")
    trials = list(_tried(measured, tasks[:2] if options.quick else tasks, settings.seeds, options.beside))
    of_sets = {"root": options.root, "shape": asdict(measured.sets.shape)}
    return Result({**asdict(settings), **of_sets}, figures_of(trials), [trial.row() for trial in trials])


if __name__ == "__main__":
    students_quality.main()
