"""How many texts may leave after a lower layer at a certified cost of a point, and are confidences true?

For each task an hPLM is tuned with the settings of `hplm create`. A head after each upper layer but the last learns the
hPLM's own answers on the training texts, with all else as it is. A fifth of the dev texts fits the temperatures by
which texts leave, the rest certifies: `max_drop` points at most are lost with 90 % certainty. As in `hplm select`, dev
texts that were trained on are left out, and one that is there twice counts once. All of them fit the temperatures of
the confidences that answers say, of which calibration errors are. All else is measured on the test texts.

`violations` draws 200 other splits of dev and test texts, and counts those that lose more than `max_drop` points over
all of them. The texts that certify are among these, so on other texts somewhat more would exceed it. What the tables
lack is computed. `select_seconds` is what a selection takes with `learned_texts` and `certifying_texts`, whose states
the tuning has left behind, by the layers as they are served. Each task is kept in a file of `--trials`, and each epoch
of its tuning in the home, where other benches find it: the same command goes on where it was.

`full` and `early` are shares of texts whose labels are all right, also where the metric is f1.

Regressions are left out, though they have ladders. Their answers say no confidence, so no calibration error is theirs;
and what they lose is a distance in standard deviations, which is no share of texts, so a mean or the worst of both
kinds would say nothing. `tests/unit/levels/` holds their certificate to its risk.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.adapters.bank import HEAD_DTYPE, HplmArtifact
from backends.adapters.head import Head
from backends.engine.stack import UpperStack
from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.ladder_answers import Ladder
from bench.kit.trials import Trials
from bench.tasks.cut import cut_task
from bench.tasks.data import Caps, labelled_task_names, task_checksums
from bench.tasks.shared_tuning import SHARED_TRAIN_TEXTS, shared_tuning
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.trainable import Indices, of_rows
from builder.construct.hplm.tune import EncodedSet, Tuned, Upper, tune
from builder.construct.tasks.calibration import calibration_error, calibration_floor, labels_of
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import TrainedTexts, hashes_of
from builder.construct.training.device import training_device
from builder.levels.answers import StepAnswers
from builder.levels.certificate import certify
from builder.levels.early_head import MOST_ANSWERS, HeadData, fit_early_head
from builder.levels.exit_layers import default_exit
from builder.levels.guarantee import Each
from builder.levels.served import answered_rows
from builder.levels.served_stack import served_stack
from builder.progress import Report, Step, progress_bars
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.device import AUTO
from builder.settings.hplm import TuneSettings

_RISK = 0.1
_GUARANTEE = Each(_RISK)
_ONE_IN_FITS = 5
_SPLITS = 200
_FP16_BYTES = 2
_FEW_LABELS = 20
"""The size of an early head grows with its labels, and is four times as large for pairs."""
_TIMED_TEXTS = 128


@dataclass(frozen=True)
class Settings:
    train_texts: int = SHARED_TRAIN_TEXTS
    dev_texts: int | None = None
    test_texts: int | None = None
    epochs: int = TuneSettings.epochs
    max_drop: float = 1.0
    learned_texts: int = 5_000
    certifying_texts: int = 1_000
    seed: int = TuneSettings.seed


FULL = Settings()
QUICK = Settings(
    train_texts=64, dev_texts=256, test_texts=128, epochs=1, max_drop=5.0, learned_texts=500, certifying_texts=100
)


@dataclass(frozen=True)
class Read:
    """Texts through the layers of an hPLM.

    Shape: states `[m, U, P]` of each row, as a head after each layer reads them
    """

    states: Sequence[Tensor]
    targets: Sequence[Any]

    def after(self, layer: int) -> list[Tensor]:
        return [row[:, layer - 1] for row in self.states]

    def only(self, rows: Indices) -> Read:
        return Read([self.states[row] for row in rows], [self.targets[row] for row in rows])


def strict_rows(train: Sequence[Example], dev: Sequence[Example]) -> Indices:
    """Return the dev texts that certify: none that was trained on, and none twice."""
    _, first = np.unique(hashes_of(dev), return_index=True)
    known = TrainedTexts.of(train).are_among(dev)
    return np.array([row for row in np.sort(first) if not known[row]])


def read_each_layer(
    upper: Upper, objective: Objective[Any], tuned: Tuned, texts: EncodedSet, name: str, report: Report
) -> Read:
    model = upper.model(tuned)
    model.train(False)

    def on_rows(done: int, total: int) -> None:
        report(Step(f"read the {name} texts", done, total))

    flat = of_rows(model.read_each, objective, texts, upper.device, on_rows)
    num_layers = upper.geometry.num_upper_layers
    return Read([row.view(len(row), num_layers, -1) for row in flat], texts.targets)


class Task:
    """An hPLM of one task, and what its layers read of the texts."""

    def __init__(self, bench: Bench, name: str, report: Report) -> None:
        settings, home = bench.settings, bench.home
        caps = Caps(settings.train_texts, settings.dev_texts, settings.test_texts)
        cut = cut_task(bench.data, name, caps, home.path / "cache" / "cut")
        data = cut.read()
        self.name, self.objective = name, objective_of(data)
        if self.objective.num_outputs == 1:
            raise InvalidArgumentError(f"{name} is a regression, whose answers say no confidence")
        sets = {
            split: encoded_set(home, bench.domain, self.objective, getattr(data, split), split, report)
            for split in ("train", "dev", "test")
        }
        tuning = replace(TuneSettings.defaults(is_taught=False), seed=settings.seed, epochs=settings.epochs)
        kept = shared_tuning(home, bench.domain, cut.files, tuning, bench.upper.device)
        self._tuned = tune(bench.upper, self.objective, sets["train"], sets["dev"], tuning, report, checkpoint=kept)
        read = {
            split: read_each_layer(bench.upper, self.objective, self._tuned, each, split, report)
            for split, each in sets.items()
        }
        self._read = {**read, "dev": read["dev"].only(strict_rows(data.train, data.dev))}
        self._bench, self._data, self._texts = bench, data, sets["test"]

    @property
    def hplm_bytes(self) -> int:
        return int(self._tuned.adapters.size_bytes + self._tuned.head.size_bytes)

    def full(self, split: str, num_layers: int) -> StepAnswers:
        return self._answers(self._tuned.head, split, num_layers)

    def early(self, head: Head, split: str, after: int) -> StepAnswers:
        return self._answers(head, split, after)

    def head_after(self, layer: int, num_layers: int) -> Head:
        """Fit a head by the hPLM's own answers."""
        return fit_early_head(self._head_data(layer, num_layers))

    def read_s_per_text(self, after: int, head: Head) -> float:
        """Return what a selection reads a text in: the layers as they are served."""
        tuned, root, texts = self._tuned, self._bench.root, self._texts
        artifact = HplmArtifact(
            f"bench/{self.name}",
            root.fingerprint,
            self._data.task,
            self._data.labels,
            tuned.pooling,
            tuned.adapters,
            tuned.head,
            self._data.pair,
        )
        few = range(min(_TIMED_TEXTS, len(texts.targets)))
        timed = EncodedSet(
            [texts.rows[row] for row in few],
            texts.targets[: len(few)],
            texts.lengths[: len(few)],
            texts.middles[: len(few)],
        )
        stack = UpperStack(root, replace(served_stack(self._bench.home), num_slots=2))
        began_s = time.monotonic()
        answered_rows(stack, artifact, {after: head}, self.objective, timed, "timed", lambda _: None)
        return (time.monotonic() - began_s) / len(few)

    def learning_s(self, layer: int, num_layers: int, learned_texts: int) -> float:
        """Return how long a head learns from so many texts, drawn from those that are here."""
        data = self._head_data(layer, num_layers)
        texts = len(self._read["train"].targets)
        count = min(MOST_ANSWERS, round(learned_texts * len(data.labels) / texts))
        drawn = torch.randint(len(data.labels), (count,), generator=torch.Generator().manual_seed(1))
        began_s = time.monotonic()
        fit_early_head(HeadData(data.states[drawn], data.answers[drawn], data.labels[drawn]))
        return time.monotonic() - began_s

    def _head_data(self, layer: int, num_layers: int) -> HeadData:
        read, full = self._read["train"], self.full("train", num_layers)
        labels = torch.cat([labels_of(target, self.objective.num_outputs) for target in read.targets])
        return HeadData(torch.cat(read.after(layer)), torch.cat(list(full.logits)), labels)

    def _answers(self, head: Head, split: str, after: int) -> StepAnswers:
        read, head = self._read[split], head.to(HEAD_DTYPE).to(torch.float32)  # as it is stored
        logits = [head.logits(states.float()) for states in read.after(after)]
        return StepAnswers.of(self.objective, logits, read.targets)


class Bench:
    """One root; each task is tuned once."""

    def __init__(self, home: Home, name: str, data: Path, settings: Settings, device: torch.device) -> None:
        self.home, self.data, self.settings = home, data, settings
        self.root = RootFolder(home.root(name))
        self.upper = Upper(self.root.upper().to(device), self.root.geometry)
        self.domain = Registry.open(home).domain(name, GENERAL_DOMAIN)

    @property
    def num_layers(self) -> int:
        return self.root.geometry.num_upper_layers

    def of_task(self, name: str, report: Report) -> list[dict[str, Any]]:
        """One row for each layer that texts may leave after."""
        task = Task(self, name, report)
        return [self._row(task, after) for after in range(1, self.num_layers)]

    def _row(self, task: Task, after: int) -> dict[str, Any]:
        head = task.head_after(after, self.num_layers)
        began_s = time.monotonic()
        dev, test = (
            Ladder(task.early(head, split, after), task.full(split, self.num_layers)) for split in ("dev", "test")
        )
        rows = np.random.default_rng(self.settings.seed).permutation(len(dev.full.is_right))
        fits, certifies = _fitting(rows)
        temperature = dev.early.temperature(fits)
        tolerance = self.settings.max_drop / 100
        certificate = certify(
            dev.early.confidence(temperature)[certifies], dev.is_harm[certifies], tolerance, _GUARANTEE
        )
        certified_s = time.monotonic() - began_s
        said, of_full = (each.temperature(rows) for each in (dev.early, dev.full))
        confidence, said_confidence = (test.early.confidence(each) for each in (temperature, said))
        leaves = confidence >= (2.0 if certificate is None else certificate.threshold)
        rng = np.random.default_rng(self.settings.seed)
        return {
            "task": task.name,
            "after": after,
            "layers": self.num_layers,
            "metric": task.objective.main_metric,
            "full": 100 * float(test.full.is_right.mean()),
            "early": 100 * float(test.early.is_right.mean()),
            "temperature": temperature,
            "threshold": None if certificate is None else certificate.threshold,
            "certified on": len(certifies),
            "answered early": float(leaves.mean()),
            "drop promised": None if certificate is None else 100 * certificate.bound,
            "drop": test.drop(leaves),
            "drop error": test.drop_error(leaves),
            "violations": self._violations(dev, test),
            "ece early before": calibration_error(test.early.confidence(1.0), test.early.is_right),
            "ece early": calibration_error(said_confidence, test.early.is_right),
            "ece full before": calibration_error(test.full.confidence(1.0), test.full.is_right),
            "ece full": calibration_error(test.full.confidence(of_full), test.full.is_right),
            "ece floor": calibration_floor(said_confidence, rng),
            "select s": self._select_s(task, after, head, certified_s),
            "labels": task.objective.num_outputs,
            "pairs": task.objective.about_pairs,
            "bytes": (head.weight.numel() + head.bias.numel()) * _FP16_BYTES / task.hplm_bytes,
        }

    def _select_s(self, task: Task, after: int, head: Head, certified_s: float) -> float | None:
        """Return what the default selection takes; None of another layer."""
        if after != default_exit(self.num_layers):
            return None
        learned, certifying = self.settings.learned_texts, self.settings.certifying_texts
        read_s = (learned + certifying) * task.read_s_per_text(after, head)
        return read_s + task.learning_s(after, self.num_layers, learned) + certified_s

    def _violations(self, dev: Ladder, test: Ladder) -> float:
        """The share of splits whose certificate does not hold over all rows."""
        both = Ladder.joined(dev, test)
        count, tolerance = len(dev.full.is_right), self.settings.max_drop / 100
        rng = np.random.default_rng(self.settings.seed)
        violations = 0
        for _ in range(_SPLITS):
            fits, certifies = _fitting(rng.permutation(len(both.full.is_right))[:count])
            confidence = both.early.confidence(both.early.temperature(fits))
            certificate = certify(confidence[certifies], both.is_harm[certifies], tolerance, _GUARANTEE)
            if certificate is not None:
                violations += both.drop(confidence >= certificate.threshold) > self.settings.max_drop
        return violations / _SPLITS


def _fitting(rows: Indices) -> tuple[Indices, Indices]:
    """Split rows into those that fit temperatures and those that certify."""
    fits = len(rows) // _ONE_IN_FITS
    return rows[:fits], rows[fits:]


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of the default exit: means over tasks of labels, or the worst task.

    `exit_share_half_mean` is of the exit after half of the layers.
    """
    chosen = [row for row in rows if row["after"] == default_exit(row["layers"])]
    of_labels = [row for row in chosen if row["metric"] == "accuracy"]
    if not of_labels:
        raise NotFoundError("no task with one label a text has been measured yet")
    half = [row for row in rows if row["metric"] == "accuracy" and 2 * row["after"] == row["layers"]]
    small = [row["bytes"] for row in chosen if row["labels"] <= _FEW_LABELS and not row["pairs"]]
    return {
        "ece_before": mean(_ece(row, " before") for row in of_labels),
        "ece_after": mean(_ece(row, "") for row in of_labels),
        "ece_no_worse_share": mean(_ece(row, "") <= _ece(row, " before") for row in of_labels),
        "ece_floor": mean(row["ece floor"] for row in of_labels),
        "violations": max(row["violations"] for row in chosen),
        "exit_share_mean": mean(row["answered early"] for row in of_labels),
        **({"exit_share_half_mean": mean(row["answered early"] for row in half)} if half else {}),
        "drop_mean": mean(row["drop"] for row in chosen),
        "worst_drop_points": max(row["drop"] for row in chosen),
        "worst_drop_less_error_points": max(row["drop"] - row["drop error"] for row in chosen),
        "select_seconds": max(row["select s"] for row in chosen),
        **({"early_bytes_share": max(small)} if small else {}),
    }


def _ece(row: Mapping[str, Any], when: str) -> float:
    """Return the calibration error of a task's confidences, the mean of both steps."""
    return float(row[f"ece early{when}"] + row[f"ece full{when}"]) / 2


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, default=Path("demo_home"), help="a home with a root; keeps tunings")
    arguments.add_argument("--root", default="minilm", help="the root")
    arguments.add_argument("--data", type=Path, required=True, help="a folder with tasks/")
    arguments.add_argument("--tasks", nargs="+", help="folders of it; no regressions [all]")
    arguments.add_argument("--trials", type=Path, help="folder that keeps what was measured")
    arguments.add_argument("--device", default=AUTO, help="where hPLMs are tuned: auto, cpu or cuda [auto]")
    arguments.set_defaults(seed=Settings.seed)


def _measured(options: Namespace, settings: Settings, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
    device = training_device(options.device)
    measured = Bench(Home(options.home.absolute()), options.root, options.data, settings, device)
    for task in tasks:
        described = {**asdict(settings), "root": measured.root.fingerprint}
        trials = Trials(options.trials, {**described, "files": task_checksums(options.data, task)})
        rows = trials.find(task)
        if rows is None:
            with progress_bars(task) as report:
                rows = measured.of_task(task, report)
            trials.keep(task, rows)
            for row in rows:
                print(row, file=sys.stderr)
        yield from rows


@bench(
    "calibration",
    bars={
        "ece_after": at_most(0.03),
        "ece_no_worse_share": at_least(6 / 7),
        "violations": at_most(0.1),
        "exit_share_mean": at_least(0.5),
        "worst_drop_less_error_points": at_most(1),
        "select_seconds": at_most(60),
        "early_bytes_share": at_most(0.03),
    },
    add_options=add_options,
)
def calibration(options: Namespace) -> Result:
    settings = replace(QUICK if options.quick else FULL, seed=options.seed)
    rows = list(_measured(options, settings, options.tasks or labelled_task_names(options.data)))
    return Result({**asdict(settings), "root": options.root, "risk": _RISK}, figures_of(rows), rows)


if __name__ == "__main__":
    calibration.main()
