"""The domain "garden" of the tiny home, further pretrained, and what tests read of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.home import Home
from backends.plot.counts import FragmentCounts
from backends.plot.header import Store
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import (
    FILLER,
    MOODS,
    TOPICS,
)
from builder.construct.domain.ngrams import CountTexts
from builder.progress import Report, Step
from builder.settings.domain import Pace, PretrainSettings

PRETRAIN = PretrainSettings(
    lower=Pace(steps=16, learning_rate=3e-3, tokens_per_batch=256, checkpoint_every=4),
    head=Pace(steps=24, learning_rate=1e-2, tokens_per_batch=256, checkpoint_every=8),
    anchor=0.1,
)
WORDS = sorted({*FILLER, *(word for words in [*TOPICS.values(), *MOODS.values()] for word in words)})


def opened(home: Home, name: str) -> tuple[RootFolder, DomainEntry, Table]:
    root, entry = RootFolder(home.root("tiny")), Registry.open(home).find_domain("tiny", name)
    return root, entry, Table.open(home.path / entry.folders[0], root.fingerprint)


def keys_of(home: Home, name: str) -> np.ndarray:
    return opened(home, name)[2].keys(Store.TRI)


def folders(home: Home, entry: DomainEntry) -> list[Path]:
    return [home.path / folder for folder in entry.folders]


def counted(home: Home, texts: list[str]) -> FragmentCounts:
    batch = CountTexts(home.root("tiny"))(texts)
    order = np.argsort(-batch.counts, kind="stable")
    return FragmentCounts(batch.keys[order], batch.counts[order])


class InterruptedRunError(Exception):
    pass


def interrupt(phase: str, done: int) -> Report:
    def report(step: Step) -> None:
        if step.phase.startswith(phase) and step.done >= done:
            raise InterruptedRunError

    return report
