"""What `--teacher dedicated` is: a model of the tenant's own that teaches an hPLM, and is not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.home import Home
from backends.root.store import RootFolder
from backends.storage import json_checksum
from builder.construct.checkpoint import Checkpoint
from builder.construct.dedicated import FINE_TUNING, Dedicated
from builder.construct.lessons import Lessons
from builder.construct.pretrained import locate_weights
from builder.construct.reading import Reading
from builder.construct.rewriting import Rewriting
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objectives import objective_of
from builder.construct.tasks.unlabelled import unlabelled_examples
from builder.construct.tunable import pooling_for
from builder.construct.tune_settings import TuneSettings
from builder.progress import Report

_LESSONS_FORMAT = 2
_LARGEST = torch.finfo(torch.float16).max
REWRITING = Rewriting()
UNLABELLED_PER_EXAMPLE = 3


@dataclass(frozen=True)
class DedicatedTeacher:
    """Fine-tunes a model for the task first, which then answers the task's texts and others.

    The others are texts without labels, where there are such, and rewritten ones in place of those that are missing.
    Interrupted, it goes on at its last epoch. Its answers, and the states that they come from, are kept for a day; the
    model only until they are there.
    """

    home: Home
    root_name: str
    unlabelled: Path | None = None
    settings: TuneSettings = FINE_TUNING
    rewriting: Rewriting = REWRITING

    def __call__(self, data: TaskData, balanced: bool, report: Report) -> Lessons:
        examples, num_unlabelled = self._examples(data)
        of_model = self._inputs(data, balanced)
        answers = self._kept("lessons", {**of_model, "examples": repr(examples), "format": _LESSONS_FORMAT})
        known = answers.load()
        if known is None:
            known = self._lessons(examples, self.model(data, balanced, report), report)
            answers.save(known)
            self._kept("teacher", of_model).remove()
        reading = known["reading"] and Reading(Head(**known["head"]), **known["reading"])
        return Lessons(examples, list(known["lessons"]), reading, {**known["figures"], **_counted(num_unlabelled)})

    def model(self, data: TaskData, balanced: bool, report: Report) -> Dedicated:
        """What teaches; made once, as long as nobody has asked for its answers."""
        root = RootFolder(self.home.root(self.root_name))
        return Dedicated.fine_tune(
            locate_weights(root.manifest, self.home.downloads),
            root.geometry,
            root.tokenizer(),
            objective_of(data, balanced),
            data.train,
            data.dev,
            replace(self.settings, class_weights="balanced") if balanced else self.settings,
            report,
            self._kept("teacher", self._inputs(data, balanced)),
        )

    def _inputs(self, data: TaskData, balanced: bool) -> dict[str, Any]:
        fingerprint = RootFolder(self.home.root(self.root_name)).fingerprint
        settings = {**asdict(self.settings), "balanced": balanced}
        return {"settings": settings, "data": [repr(data.train), repr(data.dev)], "root": fingerprint}

    def _kept(self, what: str, inputs: dict[str, Any]) -> Checkpoint:
        key = json_checksum(inputs)
        return Checkpoint(self.home.states / f".{what}-{key}", key)

    def _examples(self, data: TaskData) -> tuple[list[Example], int]:
        """All that is answered, and how many of these are texts without labels."""
        root = RootFolder(self.home.root(self.root_name))
        unlabelled: list[Example] = []
        if self.unlabelled is not None:
            known = [*data.train, *data.dev, *data.test]
            most = UNLABELLED_PER_EXAMPLE * len(data.train)
            unlabelled = unlabelled_examples(self.unlabelled, data.train[0], known, most)
        missing = max(0, self.rewriting.variants - len(unlabelled) // len(data.train))
        rewriting = replace(self.rewriting, variants=missing)
        rewritten = rewriting.apply(data.train, root.tokenizer(), root.lower().word_embeddings.weight)
        return [*data.train, *unlabelled, *rewritten], len(unlabelled)

    def _lessons(self, examples: Sequence[Example], dedicated: Dedicated, report: Report) -> dict[str, Any]:
        metric = dedicated.objective.main_metric
        figures = {f"teacher_dev_{metric}": round(dedicated.fitted.metrics[metric], 4)}
        if dedicated.objective.about_words:
            return {"lessons": dedicated.predict(examples, report), "reading": None, "figures": figures}
        states = dedicated.read(examples, report)
        reading = {"states": _in_half(states), "pooling": pooling_for(dedicated.objective, self.settings)}
        lessons = dedicated.answers(states)
        return {"lessons": lessons, "reading": reading, "head": dedicated.head.named(), "figures": figures}


def _in_half(states: Sequence[Tensor]) -> Tensor:
    """All in one, without a second copy of them in fp32."""
    halves = torch.empty(len(states), states[0].shape[-1], dtype=torch.float16)
    for place, state in enumerate(states):
        halves[place] = state[0].clamp(-_LARGEST, _LARGEST)
    return halves


def _counted(num_unlabelled: int) -> dict[str, float]:
    return {"unlabelled_texts": num_unlabelled} if num_unlabelled else {}
