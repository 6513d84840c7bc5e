"""Tunings that benches share: an hPLM that one of them has tuned in a home, the others find there, and tune it no more.

They are found by all that they depend on, so only benches with the same texts and settings share: those of
`SHARED_TRAIN_TEXTS` and of `TuneSettings.seed`, unless options say otherwise.

Usage:
    tuned = tuned_task(home, domain, cut, upper, settings, early, report)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch

from backends.adapters.bank import HplmArtifact
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import file_checksum, json_checksum
from bench.tasks.cut import CutTask
from builder.construct.hplm.early_tuning import (
    EarlyTask,
    early_examples,
    early_inputs,
    early_settings,
    tune_early_or_keep,
)
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tune import EncodedSet, Tuned, Upper, tune
from builder.construct.tasks.dataset import TaskFiles
from builder.construct.tasks.examples import Example
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import CPU
from builder.progress import Report
from builder.requests.domains import GENERAL_DOMAIN
from builder.settings.hplm import TuneSettings

SHARED_TRAIN_TEXTS = 2_000


def shared_tuning(
    home: Home, domain: DomainEntry, files: TaskFiles, settings: TuneSettings, device: torch.device = CPU
) -> Checkpoint:
    """Return where a tuning against a root's plain upper layers notes its epochs, and stays once it is done."""
    inputs = {
        "root": RootFolder(home.root(domain.root)).fingerprint,
        "tables": [file_checksum(home.path / folder / "header.json") for folder in domain.folders],
        "files": [file_checksum(path) for path in (files.train, files.dev)],
        "settings": asdict(settings),
        "device": device.type,
    }
    key = json_checksum(inputs)
    return Checkpoint(home.path / "cache" / "tuned" / f"{files.train.parent.name}-{key[:12]}.tuning", key)


def tuned_task(
    home: Home, domain: DomainEntry, cut: CutTask, upper: Upper, settings: TuneSettings, early: bool, report: Report
) -> Tuned:
    """Tune an hPLM of a task, with `early` until its lower layers answer too; what is done is not repeated."""
    data, device = cut.read(), upper.device
    objective = objective_of(data)

    def encoded(examples: Sequence[Example], split: str) -> EncodedSet:
        return encoded_set(home, domain, objective, examples, split, report)

    train, dev = encoded(data.train, "train"), encoded(data.dev, "dev")
    kept = shared_tuning(home, domain, cut.files, settings, device)
    tuned = tune(upper, objective, train, dev, settings, report, checkpoint=kept)
    if not early:
        return tuned
    examples, then = early_examples(RootFolder(home.root(domain.root)), data.train), early_settings(settings)
    key = json_checksum({"tuning": kept.inputs, **early_inputs(tuned, then, examples)})
    task = EarlyTask(upper, objective, tuned, encoded(examples, "train"), dev, home.states / f".reading-{key}")
    return tune_early_or_keep(task, then, report, Checkpoint(kept.path.with_suffix(".early"), key)).tuned


class SharedTunings:
    """hPLMs on one root, all tuned on a CPU with the same settings, until their lower layers answer too."""

    def __init__(self, home: Home, root: str, settings: TuneSettings) -> None:
        self.root, self._home, self._settings = root, home, settings

    def tuned(self, hplm: str, cut: CutTask, report: Report) -> HplmArtifact:
        """Return an hPLM of a task under a name; a tuning that is done is not repeated."""
        root, data = RootFolder(self._home.root(self.root)), cut.read()
        domain = Registry.open(self._home).domain(self.root, GENERAL_DOMAIN)
        upper = Upper(root.upper(), root.geometry)
        tuned = tuned_task(self._home, domain, cut, upper, self._settings, True, report)
        return HplmArtifact(
            hplm=hplm,
            root_fingerprint=root.fingerprint,
            task=data.task,
            labels=data.labels,
            pooling=tuned.pooling,
            adapters=tuned.adapters,
            head=tuned.head,
            pair=data.pair,
        )
