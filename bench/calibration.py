"""How many texts may leave after a lower layer at a certified cost of a point, and are confidences true?

For each task an hPLM is tuned with the settings of `hplm create`, and then until its lower layers answer too, as
where a ladder is declared; `--no-early` leaves that out. A head after each upper layer but the last learns the hPLM's
own answers on the training texts, rewritten as in `hplm select`, with all else as it is. A fifth of the dev texts
fits the temperatures by which texts leave, the rest certifies: `max_drop` points at most are lost with 90 %
certainty. As in `hplm select`, dev texts that were trained on are left out, and one that is there twice counts once.
All of them fit the temperatures of the confidences that answers report, of which calibration errors are. All else is
measured on the test texts.

The figures are of the rows that are `chosen`: of the exits that a selection has by default, each with half of the risk,
the one that saves most layers. A selection of a classification may try mixed and pruned answers too, which divides the
risk further.

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
from typing import Any, NamedTuple

import numpy as np

from backends.adapters.head import Head
from backends.engine.exits import NEVER
from backends.errors import NotFoundError
from backends.home import Home
from bench.kit.calibration_floor import calibration_floor
from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.ladder_answers import Ladder
from bench.kit.trials import Trials
from bench.tasks.data import Caps, labelled_task_names, task_checksums
from bench.tasks.each_layer import LayeredTask, OneRoot
from bench.tasks.shared_tuning import SHARED_TRAIN_TEXTS
from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.calibration import calibration_error
from builder.construct.training.device import training_device
from builder.levels.certificate import Certificate, certify
from builder.levels.exit_layers import offered_exits
from builder.levels.target import Target
from builder.progress import Report, progress_bars
from builder.settings.device import AUTO
from builder.settings.hplm import TuneSettings

_ROWS_VERSION = 4
"""1 had no row for what a selection chooses, and one temperature for both uses; heads of 2 learned from training texts
as they are; thresholds of 3 were at least 0.5, and harm alone was tested. `select s` of these had 200 splits in it."""
_ONE_IN_FITS = 5
_SPLITS = 200
_FEW_LABELS = 20
"""The size of an early head grows with its labels, and is four times as large for pairs."""


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
    early: bool = True


FULL = Settings()
QUICK = Settings(
    train_texts=64, dev_texts=256, test_texts=128, epochs=1, max_drop=5.0, learned_texts=500, certifying_texts=100
)


class Chosen(NamedTuple):
    """An exit, the temperature that decides there, and its certificate if there is one."""

    after: int
    temperature: float
    certificate: Certificate | None

    @property
    def share(self) -> float:
        return 0.0 if self.certificate is None else self.certificate.exit_share

    @property
    def threshold(self) -> float:
        return NEVER if self.certificate is None else self.certificate.threshold


class Bench:
    """One root; each task is tuned once."""

    def __init__(self, root: OneRoot, settings: Settings) -> None:
        self._root, self.settings = root, settings
        self.num_layers = root.num_layers

    def of_task(self, name: str, report: Report) -> list[dict[str, Any]]:
        """One row for each layer that texts may leave after, and one for what a selection chooses of its default."""
        task = LayeredTask(self._root, name, report)
        layers = range(1, self.num_layers)
        heads = {after: task.head_after(after, self.num_layers) for after in layers}
        dev, test = (
            {
                after: Ladder(task.early(heads[after], split, after), task.full(split, self.num_layers))
                for after in layers
            }
            for split in ("dev", "test")
        )
        rows = [self._row(task, {after: dev[after]}, test) | {"chosen": False} for after in layers]
        exits = offered_exits(self.num_layers, Target.of(self.settings.max_drop), len(dev[1].full.is_right))
        offered = {after: dev[after] for after in exits}
        began_s = time.monotonic()
        self._chosen(offered, self._order(offered))
        select_s = self._select_s(task, {after: heads[after] for after in exits}, time.monotonic() - began_s)
        return [*rows, self._row(task, offered, test) | {"chosen": True, "select s": select_s}]

    def _order(self, offered: Mapping[int, Ladder]) -> Indices:
        """Return the rows of some exits in a random order."""
        return np.random.default_rng(self.settings.seed).permutation(len(next(iter(offered.values())).full.is_right))

    def _row(self, task: LayeredTask, offered: Mapping[int, Ladder], tests: Mapping[int, Ladder]) -> dict[str, Any]:
        """Return what there is to say of the best of some exits, by the dev texts."""
        rows = self._order(offered)
        found = self._chosen(offered, rows)
        dev, test, certificate = offered[found.after], tests[found.after], found.certificate
        said, of_full = (each.temperature(rows) for each in (dev.early, dev.full))
        confidence = test.early.confidence(said)
        leaves = test.early.confidence(found.temperature) >= found.threshold
        rng = np.random.default_rng(self.settings.seed)
        return {
            "task": task.name,
            "after": found.after,
            "layers": self.num_layers,
            "metric": task.objective.main_metric,
            "full": 100 * float(test.full.is_right.mean()),
            "early": 100 * float(test.early.is_right.mean()),
            "temperature": found.temperature,
            "threshold": None if certificate is None else certificate.threshold,
            "certified on": len(_fitting(rows)[1]),
            "answered early": float(leaves.mean()),
            "layers saved": float(leaves.mean()) * (1 - found.after / self.num_layers),
            "drop promised": None if certificate is None else 100 * certificate.bound,
            "drop": test.drop(leaves),
            "drop error": test.drop_error(leaves),
            "violations": self._violations(offered, tests),
            "ece early before": calibration_error(test.early.confidence(1.0), test.early.is_right),
            "ece early": calibration_error(confidence, test.early.is_right),
            "ece full before": calibration_error(test.full.confidence(1.0), test.full.is_right),
            "ece full": calibration_error(test.full.confidence(of_full), test.full.is_right),
            "ece floor": calibration_floor(confidence, rng),
            "labels": task.objective.num_outputs,
            "pairs": task.objective.about_pairs,
            "bytes": task.head_bytes / task.hplm_bytes,
        }

    def _chosen(self, offered: Mapping[int, Ladder], rows: Indices) -> Chosen:
        """Select by some rows: the first ones fit the temperatures, and the others certify."""
        fits, certifies = _fitting(rows)
        target = Target.of(self.settings.max_drop)
        guarantee = target.tested(num_candidates=len(offered), rows=len(certifies))
        found = []
        for after, each in offered.items():
            temperature = each.early.temperature(fits)
            confidence = each.early.confidence(temperature)[certifies]
            certificate = certify(confidence, each.effect[certifies], target.tolerance, guarantee)
            found.append(Chosen(after, temperature, certificate))
        return max(found, key=lambda each: each.share * (self.num_layers - each.after))

    def _select_s(self, task: LayeredTask, heads: Mapping[int, Head], certified_s: float) -> float:
        """Return what the default selection takes."""
        learned, certifying = self.settings.learned_texts, self.settings.certifying_texts
        read_s = (learned + certifying) * task.read_s_per_text(heads)
        return read_s + sum(task.learning_s(after, self.num_layers, learned) for after in heads) + certified_s

    def _violations(self, offered: Mapping[int, Ladder], tests: Mapping[int, Ladder]) -> float:
        """The share of splits whose certificate does not hold over all rows."""
        both = {after: Ladder.joined(each, tests[after]) for after, each in offered.items()}
        count, total = (len(next(iter(each.values())).full.is_right) for each in (offered, both))
        rng = np.random.default_rng(self.settings.seed)
        violations = 0
        for _ in range(_SPLITS):
            found = self._chosen(both, rng.permutation(total)[:count])
            leaves = both[found.after].early.confidence(found.temperature) >= found.threshold
            violations += both[found.after].drop(leaves) > self.settings.max_drop
        return violations / _SPLITS


def _fitting(rows: Indices) -> tuple[Indices, Indices]:
    """Split rows into those that fit temperatures and those that certify."""
    fits = len(rows) // _ONE_IN_FITS
    return rows[:fits], rows[fits:]


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of what was chosen: means over tasks of labels, or the worst task."""
    chosen = [row for row in rows if row["chosen"]]
    of_labels = [row for row in chosen if row["metric"] == "accuracy"]
    if not of_labels:
        raise NotFoundError("no task with one label a text has been measured yet")
    small = [row["bytes"] for row in chosen if row["labels"] <= _FEW_LABELS and not row["pairs"]]
    return {
        "ece_before": mean(_ece(row, " before") for row in of_labels),
        "ece_after": mean(_ece(row, "") for row in of_labels),
        "ece_no_worse_share": mean(_ece(row, "") <= _ece(row, " before") for row in of_labels),
        "ece_floor": mean(row["ece floor"] for row in of_labels),
        "violations": max(row["violations"] for row in chosen),
        "exit_share_mean": mean(row["answered early"] for row in of_labels),
        "layers_saved_mean": mean(row["layers saved"] for row in of_labels),
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
    arguments.add_argument("--no-early", action="store_true", help="tune for the last layer alone")
    arguments.set_defaults(seed=Settings.seed)


def _measured(options: Namespace, settings: Settings, tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
    device = training_device(options.device)
    caps = Caps(settings.train_texts, settings.dev_texts, settings.test_texts)
    tuning = replace(TuneSettings.defaults(is_taught=False), seed=settings.seed, epochs=settings.epochs)
    root = OneRoot(Home(options.home.absolute()), options.root, options.data, caps, tuning, device, settings.early)
    measured = Bench(root, settings)
    for task in tasks:
        described = {**asdict(settings), "root": root.root.fingerprint, "rows": _ROWS_VERSION}
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
    settings = replace(QUICK if options.quick else FULL, seed=options.seed, early=not options.no_early)
    rows = list(_measured(options, settings, options.tasks or labelled_task_names(options.data)))
    return Result({**asdict(settings), "root": options.root, "risk": Target.of().risk}, figures_of(rows), rows)


if __name__ == "__main__":
    calibration.main()
