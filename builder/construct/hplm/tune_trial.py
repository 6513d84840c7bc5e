"""Trials of a search as tasks for other machines: a task carries what a tuning needs, or reads it from the home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.root.store import RootFolder
from builder.construct.hplm.search import PlannedTrial
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.teacher_data import TeacherData
from builder.construct.hplm.tunable import EncodedSet, Tuned
from builder.construct.hplm.tune import Upper, tune
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import Objective
from builder.construct.training.device import training_device
from builder.progress import ignore


@dataclass(frozen=True)
class TuneTrial:
    """A tuning of an hPLM with the settings of each trial; it goes on where an earlier attempt left a checkpoint.

    The lower states are too large to send: a task reads them from the home's cache.
    """

    home: Home
    domain: DomainEntry
    objective: Objective[Any]
    train: Sequence[Example]
    dev: Sequence[Example]
    teacher_data: TeacherData | None
    start: Tuned | None
    device: str
    """The kind of device: cpu or cuda."""

    def __call__(self, trial: PlannedTrial) -> Tuned:
        return tune(
            self._upper,
            self.objective,
            self._encoded_train,
            self._encoded_dev,
            trial.settings,
            ignore,
            teacher_data=self.teacher_data,
            start=self.start,
            checkpoint=trial.checkpoint,
        )

    @cached_property
    def _upper(self) -> Upper:
        root = RootFolder(self.home.root(self.domain.root))
        return Upper(root.upper().to(training_device(self.device)), root.geometry)

    @cached_property
    def _encoded_train(self) -> EncodedSet:
        return self._encoded(self.train, "train")

    @cached_property
    def _encoded_dev(self) -> EncodedSet:
        return self._encoded(self.dev, "dev")

    def _encoded(self, examples: Sequence[Example], what: str) -> EncodedSet:
        return encoded_set(self.home, self.domain, self.objective, examples, what, ignore)
