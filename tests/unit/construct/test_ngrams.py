from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from backends.errors import CorruptFileError
from backends.home import Home
from backends.plot.counts import COUNTS_NAME, FragmentCounts
from backends.plot.header import Store
from backends.plot.keys import WIDE_KEY, unpack
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, sample_texts
from builder.construct.domain.ngrams import CountTexts, count_fragments, merge_counts, shortened_counts
from seeds import SEED


def texts(count: int, seed: int) -> list[str]:
    return [text.text for text in sample_texts(count, seed)]


def counted(home: Home, corpus: list[str]) -> FragmentCounts:
    batches = [corpus[start : start + 37] for start in range(0, len(corpus), 37)]
    return count_fragments(batches, CountTexts(home.root("tiny")), len(corpus), ignore)


def as_counter(counts: FragmentCounts) -> Counter[tuple[int, ...]]:
    return Counter(dict(zip(map(tuple, unpack(counts.keys).tolist()), counts.counts.tolist(), strict=True)))


def assert_equal(one: FragmentCounts, two: FragmentCounts) -> None:
    assert np.array_equal(one.keys, two.keys)
    assert np.array_equal(one.counts, two.counts)
    assert (one.more_fragments, one.more_occurrences) == (two.more_fragments, two.more_occurrences)


def test_counts_equal_a_counters(built_home: Home) -> None:
    tokenizer = RootFolder(built_home.root("tiny")).tokenizer()
    corpus = texts(300, seed=8)
    counts = counted(built_home, corpus)
    expected: Counter[tuple[int, ...]] = Counter()
    for text in corpus:
        ids = [0, *tokenizer.encode([text]).token_ids.tolist(), 0]
        expected.update(zip(ids, ids[1:], ids[2:], strict=False))
    assert as_counter(counts) == expected
    assert counts.num_occurrences == expected.total()
    assert np.all(np.diff(counts.counts) <= 0)  # most frequent first


def test_parts_merge_to_the_whole(built_home: Home) -> None:
    corpus = texts(300, seed=10)
    parts = [counted(built_home, corpus[:120]), counted(built_home, corpus[120:])]
    assert_equal(merge_counts(parts), counted(built_home, corpus))


def test_top_and_bigrams(built_home: Home) -> None:
    counts = counted(built_home, texts(100, seed=9))
    assert len(counts.top(0.1).keys) == -(-len(counts.keys) // 10)
    assert len(counts.top(1.0, max_fragments=7).keys) == 7
    bigrams = shortened_counts(counts, Store.BI)
    assert bigrams.num_occurrences == counts.num_occurrences
    assert np.all(unpack(bigrams.keys)[:, 0] == 0)


@pytest.mark.parametrize("dtype", [np.dtype(np.uint64), WIDE_KEY])
def test_counts_on_disk(tmp_path: Path, dtype: np.dtype[np.void]) -> None:
    chance = np.random.default_rng(SEED)
    keys = np.frombuffer(bytearray(chance.bytes(500 * dtype.itemsize)), dtype)
    whole = FragmentCounts(keys, np.sort(chance.integers(1, 900, 500))[::-1].copy())
    short = whole.shortened(123)
    assert (len(short.keys), short.num_fragments, short.num_occurrences) == (123, 500, whole.num_occurrences)
    assert len(short.top(0.2).keys) == 100
    short.write(tmp_path)
    assert_equal(FragmentCounts.read(tmp_path), short)
    (tmp_path / COUNTS_NAME).write_bytes(b"nonsense")
    with pytest.raises(CorruptFileError, match="not a readable file of counts"):
        FragmentCounts.read(tmp_path)
