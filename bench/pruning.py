"""Tabi's two measures for texts that go on at an early exit, word pruning and the ensemble: are they worth it here?

For each task an hPLM is tuned with the settings of `hplm create`, and an early head after each upper layer but the last
is fitted and certified as by `hplm select`: with 90 % certainty at most `max_drop` points are lost on the dev texts.
Where that lets none leave, all go on. What is lost is measured over all test texts, against the same ladder without the
measure; the time is that of the bare engine for batches of them, with and without in turns.

- Pruning: of a text that goes on, words whose score is at most α times the mean of its words are left out of the other
  layers, by the engine as it serves. The score is the attention that a token receives in the layer below the exit.
- The ensemble: the answer is w times the full probabilities plus 1 - w times the early ones, both calibrated.

`saved` is the largest share of time that some α saves on some task at `most_points` lost at most; 0 where none does.
The least of the turns counts, so that one slow turn is not taken for a saving. The α is chosen on the texts that it is
measured on, which flatters pruning, and the loss says little where `±` is above `most_points`. `computed_tokens` is the
share of all tokens' layers that is computed then, and `computed_tokens_whole` what is computed without pruning.
`least_computed_mean` is the least share of these tokens that is computed for `most_points`, the mean over tasks and
exits. `ensemble_points_90` is what w = 0.9 gains on the texts that go on, the mean over tasks after a third of the
layers.

Each task is kept in a file of `--trials`, and its tuning in the home, where other benches find it: the same command
goes on where it was.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.adapters.bank import HEAD_DTYPE, HplmArtifact
from backends.adapters.head import Head
from backends.engine.exits import NEVER, Early, Exit
from backends.engine.pruning import Prunable
from backends.engine.stack import ReadyHplm, StackSettings, UpperStack
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.word_marks import WordMarks
from bench.kit.bare import fast_dtypes, interleaved
from bench.kit.entry import Result, bench
from bench.kit.report import machine
from bench.kit.trials import Trials
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps, task_checksums
from bench.tasks.shared_tuning import SHARED_TRAIN_TEXTS, shared_tuning
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tune import EncodedSet, Upper, tune
from builder.construct.tasks.calibration import Bools, Floats, labels_of
from builder.construct.tasks.examples import task_text
from builder.construct.tasks.task_objectives import objective_of
from builder.levels.answers import StepAnswers
from builder.levels.certificate import certify
from builder.levels.early_head import HeadData, fit_early_head
from builder.levels.exit_layers import only_exit
from builder.levels.paired_answers import effect_of
from builder.levels.served import answered_rows, served_rows, word_marks
from builder.levels.target import Target
from builder.progress import Report, progress_bars
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.hplm import TuneSettings

_ONE_IN_FITS = 5
_HPLMS = 16
"""How many hPLMs the rows of a batch are of, in turn."""
_WEIGHTS = (0.9, 0.75, 0.5)
_PRUNING = "pruning"


@dataclass(frozen=True)
class Settings:
    train_texts: int = SHARED_TRAIN_TEXTS
    dev_texts: int | None = None
    test_texts: int | None = None
    epochs: int = TuneSettings.epochs
    max_drop: float = 1.0
    most_points: float = 0.2
    alphas: tuple[float, ...] = (0.3, 0.5, 0.6, 0.7, 0.8)
    rows: int = 64
    timed_batches: int = 2
    repeats: int = 5
    seed: int = TuneSettings.seed


FULL = Settings()
QUICK = Settings(
    train_texts=64,
    dev_texts=64,
    test_texts=64,
    epochs=1,
    max_drop=5.0,
    alphas=(0.7,),
    timed_batches=1,
    repeats=1,
)


@dataclass(frozen=True)
class Batch:
    """Test texts that run together."""

    rows: Sequence[Tensor]
    hplms: Sequence[ReadyHplm]
    middles: Sequence[int | None]
    marks: Sequence[WordMarks]


class Answered(NamedTuple):
    """The logits of a row, and the share of its tokens that passed the layers behind the exit; 0 if it left there."""

    logits: Tensor
    kept: float


class Task:
    """An hPLM of one task, pinned in several slots of the bare engine, and its texts."""

    def __init__(self, home: Home, root_name: str, data: Path, name: str, settings: Settings, report: Report) -> None:
        root, self.name, self.settings, self._report = RootFolder(home.root(root_name)), name, settings, report
        domain = Registry.open(home).domain(root_name, GENERAL_DOMAIN)
        caps = Caps(settings.train_texts, settings.dev_texts, settings.test_texts)
        cut = cut_task(data, name, caps, home.path / "cache" / "cut")
        content = cut.read()
        self.objective = objective_of(content)
        self.train, self.dev, self.test = (
            encoded_set(home, domain, self.objective, getattr(content, split), split, report)
            for split in ("train", "dev", "test")
        )
        tuning = replace(TuneSettings.defaults(is_taught=False), seed=settings.seed, epochs=settings.epochs)
        upper, kept = Upper(root.upper(), root.geometry), shared_tuning(home, domain, cut.files, tuning)
        tuned = tune(upper, self.objective, self.train, self.dev, tuning, report, checkpoint=kept)
        self.artifact = HplmArtifact(
            f"bench/{name}",
            root.fingerprint,
            content.task,
            content.labels,
            tuned.pooling,
            tuned.adapters,
            tuned.head,
            self.objective.about_pairs,
        )
        self.stack = UpperStack(root, StackSettings(dtype=fast_dtypes()[0], num_slots=_HPLMS + 1))
        self._marks = word_marks(root.tokenizer(), [task_text(example) for example in content.test])

    @property
    def num_layers(self) -> int:
        return self.stack.num_layers

    def answers(self, logits: Sequence[Tensor], of: EncodedSet) -> StepAnswers:
        return StepAnswers.of(self.objective, [each[None] for each in logits], of.targets)

    def early_head(self, after: int) -> Head:
        (rows,) = served_rows(self.stack, self.artifact, (after,), self.objective, self.train, "training", self._report)
        labels = torch.cat([labels_of(target, self.objective.num_outputs) for target in self.train.targets])
        head = fit_early_head(HeadData(torch.cat(list(rows.states)), torch.cat(list(rows.logits)), labels))
        return head.to(HEAD_DTYPE).to(torch.float32)  # as it is stored

    def on_dev(self, head: Head, after: int) -> tuple[StepAnswers, StepAnswers]:
        """Return the early and the full answers."""
        (found,) = answered_rows(
            self.stack, self.artifact, {after: head}, self.objective, self.dev, "dev", self._report
        )
        early, full = (StepAnswers.of(self.objective, each, self.dev.targets) for each in (found.early, found.full))
        return early, full

    def batches(self) -> Iterator[Batch]:
        hplms = [self.stack.ready(key, lambda: self.artifact) for key in range(_HPLMS)]
        for start in range(0, len(self.test.targets), self.settings.rows):
            rows = range(start, min(start + self.settings.rows, len(self.test.targets)))
            yield Batch(
                [self.test.rows[row] for row in rows],
                [hplms[row % _HPLMS] for row in rows],
                [self.test.middles[row] for row in rows],
                [self._marks[row] for row in rows],
            )
        for hplm in hplms:
            self.stack.release(hplm)

    def run(self, batch: Batch, at_exit: Exit, alpha: float | None) -> list[Answered]:
        """Run a batch whose rows all have the same exit, and lose words there if there is an alpha."""
        prunable = [None if alpha is None else Prunable(alpha, marks) for marks in batch.marks]
        exits = [replace(at_exit, prunable=each) for each in prunable]
        early: dict[int, Early] = {}
        packed = self.stack.pack(batch.rows, batch.hplms)
        logits = self.stack.run(packed, batch.hplms, batch.middles, exits, early.update)
        return [Answered(each, _kept(early[index])) for index, each in enumerate(logits)]


def _kept(early: Early) -> float:
    return 0.0 if early.leaves else 1.0 if early.kept is None else early.kept


class Measured:
    """A task's test texts on the ladder of one exit, without any measure."""

    def __init__(self, task: Task, after: int) -> None:
        self._task, settings = task, task.settings
        head = task.early_head(after)
        early, full = task.on_dev(head, after)
        order = np.random.default_rng(settings.seed).permutation(len(full.is_right))
        fits, certifies = np.split(order, [len(order) // _ONE_IN_FITS])
        self._temperatures = early.temperature(fits), full.temperature(fits)
        confidence, effect = early.confidence(self._temperatures[0]), effect_of(full, early)
        target = Target.of(settings.max_drop)
        guarantee = target.tested(rows=len(certifies))
        certificate = certify(confidence[certifies], effect[certifies], target.tolerance, guarantee)
        threshold = NEVER if certificate is None else certificate.threshold
        self._exit = Exit(after, head, self._temperatures[0], threshold)
        self._batches = list(task.batches())
        self._plain = self._run(self._exit, None)
        self._goes_on = np.array([row.kept > 0 for row in self._plain])
        self._is_right = self._right([row.logits for row in self._plain])
        self._described = {
            "task": task.name,
            "after": after,
            "layers": task.num_layers,
            "answered early": float(1 - self._goes_on.mean()),
            "accuracy": 100 * float(self._is_right.mean()),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row for each way to prune, and one for each weight of the ensemble."""
        settings = self._task.settings
        for alpha in settings.alphas:
            yield self._pruned(alpha) | self._saved(alpha)
        early = self._early()
        yield from (self._ensemble(weight, early) for weight in _WEIGHTS)

    def _run(self, at_exit: Exit, alpha: float | None) -> list[Answered]:
        return [row for batch in self._batches for row in self._task.run(batch, at_exit, alpha)]

    def _right(self, logits: Sequence[Tensor]) -> Bools:
        return self._task.answers(logits, self._task.test).is_right

    def _pruned(self, alpha: float) -> dict[str, Any]:
        found = self._run(self._exit, alpha)
        whole, computed = self._computed(self._plain), self._computed(found)
        return {
            **self._described,
            "measure": _PRUNING,
            "alpha": alpha,
            "computed tokens, whole": whole,
            "computed tokens": computed,
            **self._points(self._right([row.logits for row in found]), np.ones_like(self._goes_on)),
        }

    def _computed(self, rows: Sequence[Answered]) -> float:
        """Return the share of all tokens' layers that is computed."""
        lengths, early = self._task.test.lengths, self._exit.after / self._task.num_layers
        kept = float(np.average([row.kept for row in rows], weights=lengths))
        return early + (1 - early) * kept

    def _saved(self, alpha: float) -> dict[str, float]:
        """Say what a row takes in the bare engine, and what is saved, as the median and the least of the turns."""
        timed = self._batches[: self._task.settings.timed_batches]
        ways: dict[str, Callable[[], object]] = {
            name: partial(self._run_all, timed, each) for name, each in (("whole", None), ("pruned", alpha))
        }
        seconds = interleaved(ways, self._task.settings.repeats)
        saved = [1 - ours / whole for ours, whole in zip(seconds["pruned"], seconds["whole"], strict=True)]
        num_rows = sum(len(batch.rows) for batch in timed)
        a_row = {f"{name} us a row": 1e6 * median(times) / num_rows for name, times in seconds.items()}
        return {**a_row, "time saved": median(saved), "least saved": min(saved)}

    def _run_all(self, batches: Sequence[Batch], alpha: float | None) -> None:
        for batch in batches:
            self._task.run(batch, self._exit, alpha)

    def _ensemble(self, weight: float, early: Sequence[Tensor]) -> dict[str, Any]:
        of_early, of_full = self._temperatures
        mixed = [
            weight * torch.softmax(row.logits / of_full, dim=-1) + (1 - weight) * torch.softmax(one / of_early, dim=-1)
            for row, one in zip(self._plain, early, strict=True)
        ]
        return {
            **self._described,
            "measure": "ensemble",
            "weight": weight,
            **self._points(self._right(mixed), self._goes_on),
        }

    def _early(self) -> list[Tensor]:
        return [row.logits for row in self._run(replace(self._exit, threshold=None), None)]

    def _points(self, is_right: Bools, among: Bools) -> dict[str, float]:
        """Say what a measure loses among some rows, with the standard error of the difference."""
        lost: Floats = (self._is_right.astype(float) - is_right)[among]
        return {"points lost": 100 * float(lost.mean()), "±": 100 * float(lost.std() / len(lost) ** 0.5)}


def figures_of(rows: Sequence[Mapping[str, Any]], most_points: float) -> dict[str, float]:
    best = _most_saving(rows, most_points)
    figures = {
        "saved": 0.0 if best is None else max(0.0, float(best["least saved"])),
        "computed_tokens": 1.0 if best is None else float(best["computed tokens"]),
        "computed_tokens_whole": 1.0 if best is None else float(best["computed tokens, whole"]),
        "least_computed_mean": _least_computed(rows, most_points),
    }
    ensembles = [row for row in rows if row["measure"] == "ensemble" and row["after"] == only_exit(row["layers"])]
    for weight in _WEIGHTS:
        gained = [-row["points lost"] for row in ensembles if row["weight"] == weight]
        figures[f"ensemble_points_{100 * weight:.0f}"] = mean(gained)
    return figures


def _least_computed(rows: Sequence[Mapping[str, Any]], most_points: float) -> float:
    """Return the least share of the tokens without pruning, all where each alpha loses too much."""
    least: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["measure"] == _PRUNING:
            place = row["task"], row["after"]
            is_harmless = row["points lost"] <= most_points
            share = row["computed tokens"] / row["computed tokens, whole"] if is_harmless else 1.0
            least[place] = min(least.get(place, 1.0), share)
    return mean(least.values())


def _most_saving(rows: Sequence[Mapping[str, Any]], most_points: float) -> Mapping[str, Any] | None:
    harmless = [row for row in rows if row["measure"] == _PRUNING and row["points lost"] <= most_points]
    return max(harmless, key=lambda row: float(row["least saved"]), default=None)


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--home", type=Path, default=Path("quickstart_home"), help="a home with a root; keeps tunings"
    )
    arguments.add_argument("--root", default="minilm", help="the root")
    arguments.add_argument("--data", type=Path, required=True, help="a folder with tasks/")
    arguments.add_argument("--tasks", nargs="+", default=["sci-cite", "mrpc"], help="folders of it, with labels")
    arguments.add_argument("--trials", type=Path, help="folder that keeps what was measured")
    arguments.set_defaults(seed=Settings.seed)


def _measured(options: Namespace, settings: Settings, task: str) -> list[dict[str, Any]]:
    home = Home(options.home.absolute())
    described = {**asdict(settings), "root": RootFolder(home.root(options.root)).fingerprint, "machine": machine()}
    trials = Trials(options.trials, {**described, "files": task_checksums(options.data, task)})
    if (rows := trials.find(task)) is None:
        with progress_bars(task) as report:
            measured = Task(home, options.root, options.data, task, settings, report)
            rows = [row for after in range(1, measured.num_layers) for row in Measured(measured, after).rows()]
        trials.keep(task, rows)
    return rows


@bench("pruning", add_options=add_options)
def pruning(options: Namespace) -> Result:
    settings = replace(QUICK if options.quick else FULL, seed=options.seed)
    rows = [row for task in options.tasks for row in _measured(options, settings, task)]
    return Result({**asdict(settings), "root": options.root}, figures_of(rows, settings.most_points), rows)


if __name__ == "__main__":
    pruning.main()
