"""One version of a domain: corpus → lower layers → counts → table, each step kept when a build is killed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.errors import TrainingDataError
from backends.home import Home
from backends.lower.encoder import domain_encoder, has_own_layers, read_training, write_layers
from backends.plot.counts import COUNTS_NAME, LEARNED_NAME, FragmentCounts
from backends.plot.header import TableSpec
from backends.plot.overlay_log import LearnedFragments, overlay_keys
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.root.store import RootFolder
from backends.storage import json_checksum
from builder.construct.domain.coverage import coverage_report
from builder.construct.domain.mlm import MlmHead
from builder.construct.domain.mlm_head import HeadFile
from builder.construct.domain.ngrams import CountTexts, count_fragments, merge_counts, ranked
from builder.construct.domain.plots import (
    MIN_OCCURRENCES,
    ComputeFragments,
    PlotContent,
    build_table,
    domain_content,
    held_by,
    require_occurrences,
    root_content,
)
from builder.construct.domain.pretrain import Pretrainer
from builder.construct.domain.resuming import INPUTS, TableBuild
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.corpus import Corpus, corpus_checksums, split_corpus
from builder.construct.training.device import CPU
from builder.executors.mapping import ParallelMap, map_here
from builder.progress import Report
from builder.settings.domain import PlotSettings, PretrainSettings

LOGGER = logging.getLogger(__name__)
MIN_TEXTS = 50
_TEXTS_PER_BATCH = 1024
_MAX_PRETRAIN_TEXTS = 200_000
_KEPT_COUNTS = 1 << 20
"""The number of counts that an update finds; in a large corpus, nearly all the others occur once."""


@dataclass(frozen=True)
class VersionPlan:
    """The inputs of one version.

    - `parent`: its tables answer for the fragments that this version lacks.
    - `before`: the version that this one continues, with its layers and counts.
    - `served`: versions whose servers have learned fragments, which this version counts.
    - `device`: where the lower layers learn.
    - `keep_learned`: the table holds learned fragments however rare; otherwise theta decides on them too.
    """

    name: str
    version: int
    corpus: tuple[Path, ...]
    plot: PlotSettings
    parent: DomainEntry | None = None
    before: DomainEntry | None = None
    pretrain: PretrainSettings | None = None
    held_out: Path | None = None
    served: tuple[DomainEntry, ...] = ()
    keep_learned: bool = True
    device: torch.device = CPU


@dataclass(frozen=True)
class BuiltTable:
    """A published table that the registry does not know yet."""

    folder: Path
    metrics: dict[str, Any]


def build_version(
    home: Home, root: RootFolder, plan: VersionPlan, report: Report, fan_out: ParallelMap = map_here
) -> BuiltTable:
    """Build the folder of a version; a folder that a killed build made of the same inputs is kept."""
    corpus = split_corpus(plan.corpus, plan.held_out)
    if corpus.num_texts < MIN_TEXTS:
        raise TrainingDataError(
            f"the corpus has {corpus.num_texts} texts besides the {len(corpus.held_out)} that are held out; "
            f"a table needs at least {MIN_TEXTS}"
        )
    return _VersionBuild(home, root, plan, corpus, report, fan_out).run()


class _VersionBuild:
    def __init__(
        self, home: Home, root: RootFolder, plan: VersionPlan, corpus: Corpus, report: Report, fan_out: ParallelMap
    ) -> None:
        self._home = home
        self._root = root
        self._plan = plan
        self._corpus = corpus
        held_out = corpus_checksums([plan.held_out] if plan.held_out else [])
        self._checksums = [*corpus_checksums(plan.corpus), *(f"held out: {checksum}" for checksum in held_out)]
        self._report = report
        self._fan_out = fan_out
        self._target = home.plot(root.manifest.name, plan.name, plan.version)
        self._parents = _paths(home, plan.parent)
        self._before = _paths(home, plan.before)
        self._spec = TableSpec(
            name=f"{plan.name}@{plan.version}",
            root_fingerprint=root.fingerprint,
            hidden_size=root.geometry.hidden_size,
            vocab_size=root.geometry.vocab_size,
            parent=plan.parent.label if plan.parent else None,
            n=root.geometry.n,
        )

    def run(self) -> BuiltTable:
        self._require_enough()
        # The head comes before all else, because it is among what a version is made of.
        pretraining = self._pretraining() if self._plan.pretrain else None
        build = TableBuild(self._target, self._inputs(pretraining))
        checkpoint = Checkpoint(self._target.with_name(f".{self._target.name}.checkpoint"), build.inputs)
        if not build.is_published():
            build.require_same_staging()
            if not has_own_layers(build.staged):
                self._write_layers(build.staged, pretraining, checkpoint)
            self._write_table(build)
            build.forget_staging()
        checkpoint.remove()
        with Table.open(self._target, self._root.fingerprint) as table:
            return BuiltTable(self._target, _metrics(table))

    def _require_enough(self) -> None:
        """Reject a corpus of too few tokens before anything is trained; no more of it is read than that takes."""
        count = CountTexts(self._root.path)
        batches = (count(texts).counts for texts in self._corpus.batches(_TEXTS_PER_BATCH))
        before = (part.counts for part in (*self._counts_before(), self._newly_learned()))
        total = 0
        for counts in chain(batches, before):
            total += int(counts.sum())
            if total >= MIN_OCCURRENCES:
                return
        require_occurrences(total)

    def _pretraining(self) -> _Pretraining:
        settings = self._plan.pretrain or PretrainSettings()
        texts = self._corpus.sample(_MAX_PRETRAIN_TEXTS)
        pretrainer = Pretrainer(self._root, texts, self._corpus.held_out, self._plan.device)
        file = HeadFile(self._root)
        head = file.require(pretrainer, self._checksums, settings.head, self._report)
        return _Pretraining(pretrainer, head, file.checksum(), settings)

    def _inputs(self, pretraining: _Pretraining | None) -> str:
        """Names all that a version depends on, but for what earlier ones learn while they serve."""
        before = self._plan.before
        inputs = {
            "spec": asdict(self._spec),
            "corpus": self._checksums,
            "plot": asdict(self._plan.plot),
            "before": before.label if before else None,
            "keep_learned": self._plan.keep_learned,
            "pretrain": [asdict(pretraining.settings), pretraining.head_checksum] if pretraining else None,
        }
        return json_checksum(inputs)

    def _write_layers(self, staged: Path, pretraining: _Pretraining | None, checkpoint: Checkpoint) -> None:
        """The version's own lower layers, if it has any: an update without pretraining keeps its predecessor's."""
        start = domain_encoder(self._root, self._before or self._parents)
        if pretraining is not None:
            layers, training = pretraining.pretrainer.train_lower(
                pretraining.head, start, pretraining.settings, checkpoint, self._report
            )
            write_layers(staged, layers, self._root.fingerprint, training)
        elif self._before and has_own_layers(self._before[0]):
            write_layers(staged, start, self._root.fingerprint, read_training(self._before[0]))

    def _write_table(self, build: TableBuild) -> None:
        counts, learned = self._counts(build.staged)
        folders = (build.staged, *self._parents)
        parents = [Table.open(folder, self._root.fingerprint) for folder in self._parents]
        content = self._content(counts, learned, folders, parents)
        batch = CountTexts(self._root.path)(self._corpus.held_out)
        held_out = FragmentCounts(batch.keys, batch.counts)
        origin = {
            INPUTS: build.inputs,
            **{name: value for name, value in asdict(self._plan.plot).items() if value is not None},
            "learned_fragments": int(np.isin(learned.keys, content[self._spec.main]).sum()),
            **coverage_report(counts, held_out, self._spec, content[self._spec.main], parents),
            **read_training(build.staged),
        }
        compute = ComputeFragments(self._root.path, folders)
        build_table(self._target, self._spec, compute, content, origin, self._report, self._fan_out)

    def _content(
        self, counts: FragmentCounts, learned: FragmentCounts, folders: Sequence[Path], parents: Sequence[Table]
    ) -> PlotContent:
        if not parents:
            return root_content(counts, learned, self._spec, self._plan.plot)
        # The tables below the nearest lower layers of their own, and that one, hold the same values as this one will.
        own = next((index for index, folder in enumerate(folders) if has_own_layers(folder)), len(parents))
        return domain_content(counts, learned, self._spec, self._plan.plot, parents[:own])

    def _counts(self, staged: Path) -> tuple[FragmentCounts, FragmentCounts]:
        """The counts of the corpus, of the version before and of what was learned; and which fragments were learned."""
        if not (staged / COUNTS_NAME).exists():
            self._write_counts(staged)
        return FragmentCounts.read(staged), self._read_learned(staged)

    def _write_counts(self, staged: Path) -> None:
        batches = self._corpus.batches(_TEXTS_PER_BATCH)
        count = CountTexts(self._root.path)
        counts = count_fragments(batches, count, self._corpus.num_texts, self._report, self._fan_out)
        if self._before:
            new = self._newly_learned()
            counts = merge_counts([counts, *self._counts_before(), new])
            if self._plan.keep_learned:
                learned = merge_counts([new, self._read_learned(self._before[0])])
                learned.top(1.0, self._plan.plot.max_learned).write(staged, LEARNED_NAME)
        kept = max(_KEPT_COUNTS, len(counts.top(self._plan.plot.theta, self._plan.plot.max_fragments).keys))
        counts.shortened(kept).write(staged)

    def _counts_before(self) -> list[FragmentCounts]:
        if not self._before:
            return []
        folder = self._before[0]
        if (folder / COUNTS_NAME).exists():
            return [FragmentCounts.read(folder)]
        LOGGER.warning("%s was built without a file of counts; only its servers' counts are used", folder)
        return []

    def _read_learned(self, folder: Path) -> FragmentCounts:
        """None where an older release wrote the version, or nothing was to be kept."""
        if not (folder / LEARNED_NAME).exists():
            return FragmentCounts(np.empty(0, self._spec.main.key_dtype), np.empty(0, np.int64))
        return FragmentCounts.read(folder, LEARNED_NAME)

    def _newly_learned(self) -> FragmentCounts:
        """Find what servers have learned beside any version, less what the version before has counted itself."""
        key = self._spec.main.key_dtype
        tables = [self._home.path / entry.folders[0] for entry in self._plan.served]
        learned = LearnedFragments.merged([overlay_keys(table, key) for table in tables], key)
        counts = ranked(learned.keys, learned.uses.astype(np.int64))
        if not self._before:
            return counts
        with Table.open(self._before[0], self._root.fingerprint) as table:
            return counts.without(held_by([table], self._spec.main, counts.keys))


@dataclass(frozen=True)
class _Pretraining:
    pretrainer: Pretrainer
    head: MlmHead
    head_checksum: str
    settings: PretrainSettings


def _paths(home: Home, domain: DomainEntry | None) -> tuple[Path, ...]:
    return tuple(home.path / folder for folder in domain.folders) if domain else ()


def _metrics(table: Table) -> dict[str, Any]:
    entries = {store.value: table.store(store).entries for store in table.spec.stores if store in table}
    size_bytes = sum(path.stat().st_size for path in table.folder.iterdir())
    origin = {name: value for name, value in table.header.origin.items() if name != INPUTS}
    return {**origin, "entries": entries, "size_bytes": size_bytes}
