"""Counting the fragments of a corpus, streamed: memory grows with the distinct fragments, not with the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from backends.plot.arrays import Keys
from backends.plot.counts import Counts, FragmentCounts
from backends.plot.header import Store
from backends.plot.keys import FragmentShape, fragment_keys
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer
from builder.executors.mapping import ParallelMap, map_here
from builder.progress import Report, Step

_MERGE_AT = 1 << 23


@dataclass(frozen=True)
class BatchCounts:
    """The distinct fragments of some texts, in the order of their keys.

    Shape:
        keys, counts: `[F]`.
    """

    num_texts: int
    keys: Keys
    counts: Counts


@dataclass(frozen=True)
class CountTexts:
    """Counts the fragments of a list of texts; picklable, so that lists can be counted elsewhere."""

    root: Path

    @cached_property
    def _root(self) -> tuple[RootTokenizer, FragmentShape]:
        root = RootFolder(self.root)
        return root.tokenizer(), FragmentShape.centred(root.geometry.n)

    def __call__(self, texts: Sequence[str]) -> BatchCounts:
        tokenizer, shape = self._root
        rows = tokenizer.encode(texts)
        keys, counts = np.unique(fragment_keys(rows.token_ids, rows.row_offsets, shape), return_counts=True)
        return BatchCounts(len(texts), keys, counts)


def count_fragments(
    batches: Iterable[list[str]], count: CountTexts, num_texts: int, report: Report, fan_out: ParallelMap = map_here
) -> FragmentCounts:
    """All fragments of a corpus of `num_texts` texts; batches are counted apart and merged in their order."""
    keys: list[Keys] = []
    counts: list[Counts] = []
    buffered = texts = 0
    for batch in fan_out(count, batches):
        keys.append(batch.keys)
        counts.append(batch.counts)
        buffered += len(batch.keys)
        if buffered > _MERGE_AT:
            merged = _merge(keys, counts)
            keys, counts, buffered = [merged[0]], [merged[1]], 0
        texts += batch.num_texts
        report(Step("count fragments", texts, num_texts))
    return ranked(*_merge(keys, counts))


def merge_counts(parts: Sequence[FragmentCounts]) -> FragmentCounts:
    """The counts of several texts together; fragments of which only sums are known count as different ones."""
    merged = ranked(*_merge([part.keys for part in parts], [part.counts for part in parts]))
    more_fragments = sum(part.more_fragments for part in parts)
    return FragmentCounts(merged.keys, merged.counts, more_fragments, sum(part.more_occurrences for part in parts))


def shortened_counts(counts: FragmentCounts, store: Store) -> FragmentCounts:
    """Count how often the fragments of a store occur within these."""
    return ranked(*_merge([store.shorten(counts.keys)], [counts.counts]))


def _merge(keys: list[Keys], counts: list[Counts]) -> tuple[Keys, Counts]:
    """Distinct keys in their order, with the sums of their counts."""
    if not keys:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    distinct, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    totals = np.bincount(inverse, np.concatenate(counts), len(distinct)).astype(np.int64)
    return distinct, totals


def ranked(keys: Keys, counts: Counts) -> FragmentCounts:
    """Distinct fragments in the order of their keys, most frequent first."""
    order = np.argsort(-counts, kind="stable")
    return FragmentCounts(keys[order], counts[order])
