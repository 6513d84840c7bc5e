"""Tunings that benches share: an hPLM that one of them has tuned in a home, the others find there, and tune it no more.

They are found by all that they depend on, so only benches with the same texts and settings share: those of
`SHARED_TRAIN_TEXTS` and of `TuneSettings.seed`, unless options say otherwise.

Usage:
    checkpoint = shared_tuning(home, domain, cut.files, settings, upper.device)
    tuned = tune(upper, objective, train, dev, settings, report, checkpoint=checkpoint)
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from backends.adapters.bank import HplmArtifact
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import file_checksum, json_checksum
from bench.tasks.cut import CutTask
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tune import Upper, tune
from builder.construct.tasks.dataset import TaskFiles
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


class SharedTunings:
    """hPLMs on one root, all tuned on a CPU with the same settings."""

    def __init__(self, home: Home, root: str, settings: TuneSettings) -> None:
        self.root, self._home, self._settings = root, home, settings

    def tuned(self, hplm: str, cut: CutTask, report: Report) -> HplmArtifact:
        """Return an hPLM of a task under a name; a tuning that is done is not repeated."""
        root, data = RootFolder(self._home.root(self.root)), cut.read()
        domain = Registry.open(self._home).domain(self.root, GENERAL_DOMAIN)
        objective, upper = objective_of(data), Upper(root.upper(), root.geometry)
        train, dev = (
            encoded_set(self._home, domain, objective, examples, split, report)
            for split, examples in (("train", data.train), ("dev", data.dev))
        )
        kept = shared_tuning(self._home, domain, cut.files, self._settings)
        tuned = tune(upper, objective, train, dev, self._settings, report, checkpoint=kept)
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
