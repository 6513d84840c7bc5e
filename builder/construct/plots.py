"""Building PLOTs: count a corpus, run its fragments through the lower layers, write the table.

A killed build goes on where it was: counting again gives the same order, and the writer knows how many entries are
durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Halves, Keys
from backends.plot.header import Store, TableSpec
from backends.plot.keys import unpack
from backends.plot.table import Table
from backends.plot.writer import TableWriter
from backends.root.lower import FragmentEncoder
from builder.construct.ngrams import FragmentCounts
from builder.progress import Report, Step

_FRAGMENTS_PER_BATCH = 4096
MIN_OCCURRENCES = 1000


@dataclass(frozen=True)
class PlotSettings:
    """Which fragments a table keeps: the `theta` share of the most frequent, `max_fragments` at most."""

    theta: float = 1.0
    max_fragments: int | None = None
    max_bigrams: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.theta <= 1:
            raise InvalidArgumentError(
                f"theta is the share of fragments to keep, above 0 and at most 1, not {self.theta}"
            )
        for limit in (self.max_fragments, self.max_bigrams):
            if limit is not None and limit < 1:
                raise InvalidArgumentError("a table must be allowed at least one fragment")


@dataclass(frozen=True)
class PlotContent:
    """The keys of a table's stores; `unigrams` says whether all of them are in it."""

    trigrams: Keys
    bigrams: Keys
    unigrams: bool
    origin: dict[str, Any]

    def with_origin(self, more: dict[str, Any]) -> PlotContent:
        return replace(self, origin={**self.origin, **more})


def root_content(counts: FragmentCounts, settings: PlotSettings) -> PlotContent:
    """A root's own table: tri-grams, bi-grams and all uni-grams."""
    _require_occurrences(counts)
    kept = counts.top(settings.theta, settings.max_fragments)
    bigrams = counts.bigrams().top(1.0, settings.max_bigrams)
    return PlotContent(kept.keys, bigrams.keys, True, _origin(counts, kept))


def domain_content(counts: FragmentCounts, parents: list[Table], settings: PlotSettings) -> PlotContent:
    """A domain's table: its most frequent tri-grams, without those that a parent holds with the same value."""
    _require_occurrences(counts)
    kept = counts.top(settings.theta, settings.max_fragments)
    known = np.zeros(len(kept.keys), np.bool_)
    for table in parents:
        known |= table.find(Store.TRI, kept.keys)[1]
    return PlotContent(kept.without(known).keys, np.empty(0, np.uint64), False, _origin(counts, kept))


def build_table(target: Path, spec: TableSpec, encoder: FragmentEncoder, content: PlotContent, report: Report) -> Path:
    """Compute what is not durable yet, and publish the table's folder."""
    sizes = {
        Store.UNI: spec.vocab_size if content.unigrams else 0,
        Store.BI: len(content.bigrams),
        Store.TRI: len(content.trigrams),
    }
    total = sum(sizes.values())
    with TableWriter(target, spec) as writer:
        done = sum(writer.count(store) for store in sizes)
        report(Step("compute fragments", done, total))
        for store in sizes:
            keys = np.arange(spec.vocab_size, dtype=np.uint64) if store is Store.UNI else _keys_of(content, store)
            for batch in _batches(keys[writer.count(store) : sizes[store]]):
                writer.append(store, batch, fragment_values(encoder, store, batch))
                done += len(batch)
                report(Step("compute fragments", done, total))
        return writer.finish(content.origin)


@torch.inference_mode()
def fragment_values(encoder: FragmentEncoder, store: Store, keys: Keys) -> Halves:
    """The gated states of a store's fragments.

    Shape: keys [K] -> [K, vectors, H]
    """
    ids = keys.astype(np.int64)[:, None] if store is Store.UNI else unpack(keys)[:, store.slots]
    gated = encoder(torch.from_numpy(np.ascontiguousarray(ids)), first_slot=store.slots.start)
    values: Halves = gated.to(torch.float16).numpy()
    return values


def _keys_of(content: PlotContent, store: Store) -> Keys:
    return content.bigrams if store is Store.BI else content.trigrams


def _batches(keys: Keys) -> Iterator[Keys]:
    for start in range(0, len(keys), _FRAGMENTS_PER_BATCH):
        yield keys[start : start + _FRAGMENTS_PER_BATCH]


def _require_occurrences(counts: FragmentCounts) -> None:
    if counts.num_occurrences < MIN_OCCURRENCES:
        raise InvalidArgumentError(
            f"the corpus has {counts.num_occurrences} tokens; a table needs at least {MIN_OCCURRENCES}"
        )


def _origin(counts: FragmentCounts, kept: FragmentCounts) -> dict[str, float]:
    occurrences = counts.num_occurrences
    return {
        "tokens": occurrences,
        "distinct_fragments": len(counts.keys),
        "kept_fragments": len(kept.keys),
        "coverage": round(kept.num_occurrences / occurrences, 4),
    }
