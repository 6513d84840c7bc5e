"""Counting the fragments of a corpus, streamed: memory grows with the distinct fragments, not with the text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backends.plot.arrays import Keys
from backends.plot.keys import fragment_keys, right_bigram
from backends.root.tokenizer import RootTokenizer
from builder.progress import Report, Step

Counts = npt.NDArray[np.int64]
_MERGE_AT = 1 << 23


@dataclass(frozen=True)
class FragmentCounts:
    """Distinct fragments, most frequent first; equals in the order of their keys, so a recount is identical.

    Shape:
        keys, counts: `[F]`.
    """

    keys: Keys
    counts: Counts

    @property
    def num_occurrences(self) -> int:
        return int(self.counts.sum())

    def top(self, theta: float, max_fragments: int | None = None) -> FragmentCounts:
        """The `theta` share of the distinct fragments that occur most, and no more than `max_fragments`."""
        kept = int(np.ceil(theta * len(self.keys)))
        kept = kept if max_fragments is None else min(kept, max_fragments)
        return FragmentCounts(self.keys[:kept], self.counts[:kept])

    def without(self, known: npt.NDArray[np.bool_]) -> FragmentCounts:
        return FragmentCounts(self.keys[~known], self.counts[~known])

    def bigrams(self) -> FragmentCounts:
        """The right bi-grams of these fragments, with their counts."""
        return _ranked(*_merge([right_bigram(self.keys)], [self.counts]))


def count_fragments(
    batches: Iterable[list[str]], tokenizer: RootTokenizer, num_texts: int, report: Report
) -> FragmentCounts:
    """All tri-grams of a corpus of `num_texts` texts."""
    keys: list[Keys] = []
    counts: list[Counts] = []
    buffered = texts = 0
    for batch in batches:
        rows = tokenizer.encode(batch)
        batch_keys, batch_counts = np.unique(fragment_keys(rows.token_ids, rows.row_offsets), return_counts=True)
        keys.append(batch_keys)
        counts.append(batch_counts)
        buffered += len(batch_keys)
        if buffered > _MERGE_AT:
            merged = _merge(keys, counts)
            keys, counts, buffered = [merged[0]], [merged[1]], 0
        texts += len(batch)
        report(Step("count fragments", texts, num_texts))
    return _ranked(*_merge(keys, counts))


def _merge(keys: list[Keys], counts: list[Counts]) -> tuple[Keys, Counts]:
    if not keys:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    distinct, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    totals = np.bincount(inverse, np.concatenate(counts), len(distinct)).astype(np.int64)
    return distinct, totals


def _ranked(keys: Keys, counts: Counts) -> FragmentCounts:
    order = np.lexsort((keys, -counts))
    return FragmentCounts(keys[order], counts[order])
