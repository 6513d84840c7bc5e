"""`--teacher dedicated`: a fine-tuned model that teaches an hPLM, and is not kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from backends.adapters.head import Head
from backends.file_lock import locked_in_turn
from backends.home import Home
from backends.root.store import RootFolder
from backends.storage import json_checksum
from builder.construct.hplm.dedicated import FINE_TUNING, Dedicated
from builder.construct.hplm.rewriting import Rewriting
from builder.construct.hplm.state_rows import as_float16, find_rows, stored_rows
from builder.construct.hplm.states import remove_forgotten
from builder.construct.hplm.teacher_data import TeacherData, TeacherStates
from builder.construct.hplm.tunable import pooling_for
from builder.construct.root.source import locate_weights
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.unlabelled import unlabelled_examples
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import CPU
from builder.progress import Report, Step
from builder.settings.hplm import TuneSettings

TEACHER_DATA_FORMAT = 3
"""The format of what a teacher hands on: 1 had answers, 2 states of all but words."""
REWRITING = Rewriting()
UNLABELLED_PER_EXAMPLE = 3


@dataclass(frozen=True)
class DedicatedTeacher:
    """Fine-tunes a model for the task first, which then answers the task's texts and others.

    The others are texts without labels, and rewritten ones where there are too few of these.
    Interrupted, it goes on at its last epoch. Its answers, and the states that they come from, are kept for a day; the
    model only until they are there.
    """

    home: Home
    root_name: str
    unlabelled: Path | None = None
    settings: TuneSettings = FINE_TUNING
    rewriting: Rewriting = REWRITING
    device: torch.device = CPU

    def __call__(self, data: TaskData, pupil: TuneSettings, report: Report) -> TeacherData:
        root = RootFolder(self.home.root(self.root_name))
        examples, num_unlabelled = taught_examples(root, data, self.unlabelled, self.rewriting)
        states, figures = self._states(data, examples, pupil, report)
        answers = states.answers(*objective_of(data).scale)
        return TeacherData(examples, answers, states, {**figures, **_counted(num_unlabelled)})

    def model(self, data: TaskData, pupil: TuneSettings, report: Report) -> Dedicated:
        """The teacher; made once, and kept until its answers are requested."""
        with self._alone(data, pupil, report):
            return self._model(data, pupil, report)

    def _states(
        self, data: TaskData, examples: Sequence[Example], pupil: TuneSettings, report: Report
    ) -> tuple[TeacherStates, dict[str, float]]:
        """Return the states that the model's head reads, and the model's figures; make those not kept whole."""
        of_examples = {**self._inputs(data, pupil), "examples": repr(examples), "format": TEACHER_DATA_FORMAT}
        kept = self._kept("lessons", of_examples)
        with self._alone(data, pupil, report):
            known = kept.load()
            states = find_rows(self.home.states / known["states"]) if known else None
            if known is None or states is None:
                dedicated = self._model(data, pupil, report)
                store = self._path("reading", {**of_examples, "head": dedicated.head.checksum})
                encoded = ((as_float16(each), None, None) for each in dedicated.read(examples, report))
                states = stored_rows(store, lambda: encoded)
                known = {
                    "states": store.name,
                    "head": dedicated.head.named(),
                    "pooling": pooling_for(dedicated.objective, self._settings(pupil)),
                    "figures": _figures(dedicated),
                }
                kept.save(known)
                self._kept("teacher", self._inputs(data, pupil)).remove()
                remove_forgotten(self.home)
        return TeacherStates(Head(**known["head"]), states, known["pooling"]), known["figures"]

    def _model(self, data: TaskData, pupil: TuneSettings, report: Report) -> Dedicated:
        root, settings = RootFolder(self.home.root(self.root_name)), self._settings(pupil)
        return Dedicated.fine_tune(
            locate_weights(root.manifest, self.home.downloads),
            root.geometry,
            root.tokenizer(),
            objective_of(data, settings.balances_classes),
            data.train,
            data.dev,
            settings,
            report,
            self._kept("teacher", self._inputs(data, pupil)),
            self.device,
        )

    def _alone(self, data: TaskData, pupil: TuneSettings, report: Report) -> AbstractContextManager[None]:
        """One process makes a model; others that need it wait until it is made."""
        path = self._path("lock", self._inputs(data, pupil))
        return locked_in_turn(path, lambda: report(Step("wait for another build's model", 0, 1)))

    def _settings(self, pupil: TuneSettings) -> TuneSettings:
        return replace(self.settings, class_weights=pupil.class_weights, pooling=pupil.pooling)

    def _inputs(self, data: TaskData, pupil: TuneSettings) -> dict[str, Any]:
        fingerprint = RootFolder(self.home.root(self.root_name)).fingerprint
        return {
            "settings": asdict(self._settings(pupil)),
            "data": [repr(data.train), repr(data.dev)],
            "root": fingerprint,
        }

    def _kept(self, what: str, inputs: dict[str, Any]) -> Checkpoint:
        return Checkpoint(self._path(what, inputs), json_checksum(inputs))

    def _path(self, what: str, inputs: dict[str, Any]) -> Path:
        return self.home.states / f".{what}-{json_checksum(inputs)}"


def taught_examples(
    root: RootFolder, data: TaskData, unlabelled: Path | None, rewriting: Rewriting
) -> tuple[list[Example], int]:
    """Return all examples for a teacher to answer, and how many of these are texts without labels."""
    others: list[Example] = []
    if unlabelled is not None:
        known = [*data.train, *data.dev, *data.test]
        others = unlabelled_examples(unlabelled, data.train[0], known, UNLABELLED_PER_EXAMPLE * len(data.train))
    missing = replace(rewriting, variants=max(0, rewriting.variants - len(others) // len(data.train)))
    rewritten = missing.apply(data.train, root.tokenizer(), root.lower().word_embeddings.weight)
    return [*data.train, *others, *rewritten], len(others)


def _figures(dedicated: Dedicated) -> dict[str, float]:
    metric = dedicated.objective.main_metric
    return {f"teacher_dev_{metric}": round(dedicated.best.metrics[metric], 4)}


def _counted(num_unlabelled: int) -> dict[str, float]:
    return {"unlabelled_texts": num_unlabelled} if num_unlabelled else {}
