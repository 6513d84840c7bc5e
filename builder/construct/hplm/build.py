"""The tuning behind `hplm create` and `hplm update`: from examples to weights that are worth publishing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.root.store import RootFolder
from backends.storage import file_checksum, json_checksum
from builder.construct.hplm.early_tuning import (
    EarlyOutcome,
    EarlyTask,
    early_examples,
    early_inputs,
    early_settings,
    tune_early_or_keep,
)
from builder.construct.hplm.search import PlannedTrial, Trial, best_trial, candidates, run_trials, run_trials_apart
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.teacher_data import Teacher, TeacherData
from builder.construct.hplm.tunable import EncodedSet, Tuned, new_head
from builder.construct.hplm.tune import Upper, evaluate, predict, tune
from builder.construct.hplm.tune_trial import TuneTrial
from builder.construct.tasks.dataset import CLASSIFICATION, TaskData, TaskFiles
from builder.construct.tasks.examples import Example, LabelledText, majority_share
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import MadeWith, TrainedTexts
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import CPU
from builder.executors.cluster import cluster_trainings
from builder.executors.mapping import ParallelMap, map_here
from builder.progress import Report, Step
from builder.settings.hplm import TuneSettings


@dataclass(frozen=True)
class Start:
    """Weights to go on from, and a name for exactly these."""

    tuned: Tuned
    checksum: str


class HplmBuild:
    """One version in the making. It goes on from the checkpoints beside its folder that a killed build has left."""

    def __init__(
        self,
        home: Home,
        domain: DomainEntry,
        hplm: str,
        version: int,
        files: TaskFiles,
        data: TaskData,
        report: Report,
        device: torch.device = CPU,
    ) -> None:
        self.root = RootFolder(home.root(domain.root))
        self.home, self.domain, self.hplm, self.version, self.data = home, domain, hplm, version, data
        self._files, self.report = files, report
        self._target = home.bank(domain.root, hplm, version)
        self._teacher_data: TeacherData | None = None
        self._answered: Sequence[Example] = ()
        self._upper = Upper(self.root.upper().to(device), self.root.geometry)
        if note := leaks_shown(data):
            report(Step("read the examples", 1, 1, note))

    def tune(
        self,
        settings: TuneSettings,
        search: int,
        start: Start | None = None,
        teacher: Teacher | None = None,
        fan_out: ParallelMap = map_here,
    ) -> list[Trial]:
        """The trials of a search, or the only one; several run side by side where `fan_out` spans a cluster."""
        if teacher and teacher.unlabelled and settings.distil_weight < 1:
            raise InvalidArgumentError(
                f"a distil_weight of {settings.distil_weight} needs labels, which {teacher.unlabelled} does not have; "
                "an update takes it over from the live version, unless --settings names another (1)"
            )
        objective = objective_of(self.data, settings.balances_classes)
        teacher_data = teacher(self.data, settings, self.report) if teacher else None
        self._teacher_data, self._answered = teacher_data, teacher_data.examples if teacher_data else ()
        texts = teacher_data.examples if teacher_data else self.data.train
        train = self._encoded(objective, texts, self.domain, "train")
        dev = self._encoded(objective, self.data.dev, self.domain, "dev")
        first = start.tuned if start else None
        trials = self._planned(settings, search, start)
        device = self._upper.device.type
        apart = cluster_trainings(fan_out, len(trials), on_gpu=device == "cuda")
        if apart is not None:
            task = TuneTrial(self.home, self.domain, objective, texts, self.data.dev, teacher_data, first, device)
            return run_trials_apart(trials, task, apart, self.report)

        def tune_one(trial: PlannedTrial, report: Report) -> Tuned:
            return tune(
                self._upper,
                objective,
                train,
                dev,
                trial.settings,
                report,
                teacher_data=teacher_data,
                start=first,
                checkpoint=trial.checkpoint,
            )

        return run_trials(trials, tune_one, self.report)

    def measured(self, trials: Sequence[Trial], early: bool = False) -> tuple[Trial, dict[str, Any]]:
        """The best trial, and all that is worth knowing of it; with `early` its lower layers learn to answer too."""
        main_metric = self.objective.main_metric
        best = best_trial(trials, main_metric)
        best_epoch, said = best.tuned.epoch, dict[str, Any]()
        if early and self.root.geometry.num_upper_layers > 1:
            outcome = self._answering_early(best)
            best, said = replace(best, tuned=outcome.tuned), {"early_tuning": outcome.finding}
        figures: dict[str, Any] = {"main_metric": main_metric, **_prefixed("dev", best.tuned.metrics), **said}
        figures |= {
            "best_epoch": best_epoch,
            "train_texts": len(self.data.train),
            "dev_texts": len(self.data.dev),
        }
        if self.data.test:
            figures |= _prefixed("test", self.score(best.tuned, self.data.test, self.domain, "test"))
        figures |= _majorities(self.data)
        figures |= self._teacher_data.figures if self._teacher_data else {}
        figures |= {name: count for name, count in self.data.leaks.items() if count}
        if len(trials) > 1:
            figures["search"] = [trial.described(main_metric) for trial in trials]
        return best, figures

    def _answering_early(self, trial: Trial) -> EarlyOutcome:
        """Tune the weights of a trial on."""
        own, settings = trial.tuned, early_settings(trial.settings)
        if self._teacher_data is None:
            self._answered = early_examples(self.root, self.data.train)
        inputs = self._inputs() | early_inputs(own, settings, self._answered)
        train, dev = (
            self._encoded(self.objective, texts, self.domain, what)
            for texts, what in ((self._answered, "train"), (self.data.dev, "dev"))
        )
        reading = self.home.states / f".reading-{json_checksum({**inputs, 'device': self._upper.device.type})}"
        task = EarlyTask(self._upper, self.objective, own, train, dev, reading)
        return tune_early_or_keep(task, settings, self.report, self._checkpoint("early", inputs))

    def score(self, tuned: Tuned, examples: Sequence[Example], domain: DomainEntry, what: str) -> dict[str, float]:
        """Measure weights on examples, read with the tables of a domain version."""
        return evaluate(self._upper, self.objective, tuned, self._encoded(self.objective, examples, domain, what))

    def dev_terms(self, tuned: Tuned, labels: tuple[str, ...], domain: DomainEntry) -> Floats:
        """Return `Objective.terms` of weights on the dev file, where the labels may be others than the build's."""
        objective = objective_of(replace(self.data, labels=labels))
        dev = self._encoded(objective, self.data.dev, domain, "dev")
        return objective.terms(predict(self._upper, objective, tuned, dev), dev.targets)

    def artifact(self, trial: Trial, origin: Mapping[str, Any]) -> HplmArtifact:
        """Put a trial's weights together with their origin, to which the build adds what it knows itself."""
        known = {"domain": self.domain.label, "tune": asdict(trial.settings), "teacher": self._teacher_digest}
        return HplmArtifact(
            hplm=self.hplm,
            root_fingerprint=self.root.fingerprint,
            task=self.data.task,
            labels=self.data.labels,
            pooling=trial.tuned.pooling,
            adapters=trial.tuned.adapters,
            head=trial.tuned.head,
            pair=self.data.pair,
            origin={**origin, **known},
        )

    @property
    def made_with(self) -> MadeWith:
        """The texts of the training, with those that a teacher or the hPLM has only answered, and the dev file's."""
        trained = TrainedTexts.of([*self.data.train, *self._answered])
        return MadeWith(trained, TrainedTexts.of(self.data.dev))

    def forget_checkpoints(self) -> None:
        """Remove the checkpoints of this version, and of earlier ones that were killed just before that."""
        hplm = self._target.name.partition("@")[0]
        for path in self._target.parent.glob(f".{hplm}@*.tuning-*"):
            path.unlink(missing_ok=True)

    @cached_property
    def objective(self) -> Objective[Any]:
        return objective_of(self.data)

    @property
    def _teacher_digest(self) -> str | None:
        return self._teacher_data.digest if self._teacher_data else None

    def _encoded(
        self, objective: Objective[Any], examples: Sequence[Example], domain: DomainEntry, what: str
    ) -> EncodedSet:
        return encoded_set(self.home, domain, objective, examples, what, self.report)

    def _planned(self, settings: TuneSettings, search: int, start: Start | None) -> list[PlannedTrial]:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        inputs = self._inputs()
        inputs |= {"start": start.checksum if start else None, "teacher": self._teacher_digest}
        chosen = candidates(settings, search, same_recipe=start is not None)
        return [
            PlannedTrial(each, self._checkpoint(number, {**inputs, "settings": asdict(each)}))
            for number, each in enumerate(chosen, start=1)
        ]

    def _checkpoint(self, trial: int | str, inputs: dict[str, Any]) -> Checkpoint:
        return Checkpoint(self._target.with_name(f".{self._target.name}.tuning-{trial}"), json_checksum(inputs))

    def _inputs(self) -> dict[str, Any]:
        """All that a tuning depends on, besides its settings."""
        return {
            "root": self.root.fingerprint,
            "tables": [file_checksum(self.home.path / folder / "header.json") for folder in self.domain.folders],
            "task": self.data.task,
            "labels": list(self.data.labels),
            "files": [file_checksum(path) for path in (self._files.train, self._files.dev)],
        }


def relabelled(head: Head, old: Sequence[str], new: Sequence[str], seed: int) -> Head:
    """A head whose rows follow other labels: those of labels that stay are kept, the others drawn by the seed."""
    fresh = new_head(len(new), head.weight.shape[1], torch.Generator().manual_seed(seed))
    weight, bias = fresh.weight, fresh.bias
    for row, label in enumerate(new):
        if label in old:
            weight[row], bias[row] = head.weight[old.index(label)].float(), head.bias[old.index(label)].float()
    return replace(head, weight=weight, bias=bias)


def _prefixed(split: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{split}_{name}": round(value, 4) for name, value in metrics.items()}


def _majorities(data: TaskData) -> dict[str, float]:
    """Compute the score of always giving the most frequent answer."""
    if data.task != CLASSIFICATION:
        return {}
    splits = (("majority_share", data.dev), ("test_majority_share", data.test))
    shares = {name: [each for each in split if isinstance(each, LabelledText)] for name, split in splits}
    return {name: round(majority_share(examples), 4) for name, examples in shares.items() if examples}


def leaks_shown(data: TaskData) -> str:
    """Return a warning of dev and test texts that were trained on; nothing where there are none."""
    parts = (("dev", data.dev), ("test", data.test))
    known = (("train", "are in the training file too"), ("live_train", "were trained on for the live version"))
    notes = [
        f"{count} of {len(examples)} {name} texts {what}"
        for split, what in known
        for name, examples in parts
        if (count := data.leaks.get(f"{name}_in_{split}", 0))
    ]
    return "warning: " + ", ".join(notes) if notes else ""
