"""Building PLOTs: choose fragments by their counts, run them through the lower layers, write the table.

A killed build goes on where it was: the writer knows how many entries are durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from backends.errors import InvalidArgumentError
from backends.lower.encoder import domain_encoder
from backends.lower.layers import fragment_values
from backends.plot.arrays import Float16Array, Keys
from backends.plot.counts import FragmentCounts
from backends.plot.header import Store, TableSpec
from backends.plot.table import Table
from backends.plot.writer import TableWriter
from backends.root.lower import FragmentEncoder
from backends.root.store import RootFolder
from builder.construct.domain.ngrams import shortened_counts
from builder.executors.mapping import ParallelMap, map_here
from builder.progress import Report, Step
from builder.settings.domain import PlotSettings

_FRAGMENTS_PER_BATCH = 4096
MIN_OCCURRENCES = 1000


PlotContent = Mapping[Store, Keys]
"""The keys of a table's stores, most frequent first."""
FragmentBatch = tuple[Store, Keys]


def root_content(
    counts: FragmentCounts, learned: FragmentCounts, spec: TableSpec, settings: PlotSettings
) -> PlotContent:
    """A root's own table: whole fragments, shorter ones, and all uni-grams."""
    require_occurrences(counts.num_occurrences)
    main, *shorter, last = spec.stores
    content = {last: np.arange(spec.vocab_size, dtype=np.uint64)}
    for store in reversed(shorter):
        content[store] = shortened_counts(counts, store).top(1.0, settings.max_bigrams).keys
    return {**content, main: chosen_fragments(counts, learned, settings)}


def domain_content(
    counts: FragmentCounts,
    learned: FragmentCounts,
    spec: TableSpec,
    settings: PlotSettings,
    equal_tables: Sequence[Table],
) -> PlotContent:
    """A domain's table: its most frequent whole fragments, without those that a parent holds with the same value."""
    require_occurrences(counts.num_occurrences)
    keys = chosen_fragments(counts, learned, settings)
    return {spec.main: keys[~held_by(equal_tables, spec.main, keys)]}


def chosen_fragments(counts: FragmentCounts, learned: FragmentCounts, settings: PlotSettings) -> Keys:
    """The most frequent fragments, and all that servers had to learn, however rare in the corpus.

    In a table that may not hold them all, the learned ones are half of the entries at most.
    """
    frequent = counts.top(settings.theta, settings.max_fragments).keys
    requested = learned.top(1.0, settings.max_learned).keys
    is_requested = np.isin(frequent, requested)
    if settings.max_fragments is not None:
        is_too_many = np.cumsum(~is_requested) > settings.max_fragments - len(requested)
        frequent = frequent[is_requested | ~is_too_many]
    return np.concatenate([frequent, requested[~np.isin(requested, frequent)]])


def held_by(tables: Iterable[Table], store: Store, keys: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark the keys that some table has in this store."""
    held = np.zeros(len(keys), np.bool_)
    for table in tables:
        if store in table:
            held |= table.find(store, keys)[1]
    return held


@dataclass(frozen=True)
class ComputeFragments:
    """The lower layers behind a chain of folders; picklable, so that batches can be computed elsewhere."""

    root: Path
    folders: tuple[Path, ...]

    @cached_property
    def _encoder(self) -> FragmentEncoder:
        return domain_encoder(RootFolder(self.root), self.folders)

    def __call__(self, batch: FragmentBatch) -> Float16Array:
        return fragment_values(self._encoder, *batch)


def build_table(
    target: Path,
    spec: TableSpec,
    compute: ComputeFragments,
    content: PlotContent,
    origin: Mapping[str, Any],
    report: Report,
    fan_out: ParallelMap = map_here,
) -> Path:
    """Compute the fragments that are not durable yet, append them batch by batch, and publish the folder."""
    total = sum(len(keys) for keys in content.values())
    with TableWriter(target, spec) as writer:
        done = sum(writer.count(store) for store in content)
        report(Step("compute fragments", done, total))
        pending = list(_batches(content, writer))
        for (store, keys), values in zip(pending, fan_out(compute, pending), strict=True):
            writer.append(store, keys, values)
            done += len(keys)
            report(Step("compute fragments", done, total))
        return writer.finish(origin)


def _batches(content: PlotContent, writer: TableWriter) -> Iterator[FragmentBatch]:
    for store, keys in content.items():
        for start in range(writer.count(store), len(keys), _FRAGMENTS_PER_BATCH):
            yield store, keys[start : start + _FRAGMENTS_PER_BATCH]


def require_occurrences(num_occurrences: int) -> None:
    if num_occurrences < MIN_OCCURRENCES:
        raise InvalidArgumentError(f"the corpus has {num_occurrences} tokens; a table needs at least {MIN_OCCURRENCES}")
