from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from backends.plot.keys import unpack
from backends.root.tokenizer import RootTokenizer
from builder.construct.ngrams import count_fragments
from tiny_home import ignore, sample_texts


def test_counts_equal_a_counters(tiny_bert: Path) -> None:
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", 32)
    texts = [text.text for text in sample_texts(300, seed=8)]
    batches = [texts[start : start + 37] for start in range(0, len(texts), 37)]
    counts = count_fragments(batches, tokenizer, len(texts), ignore)
    expected: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        ids = [0, *tokenizer.encode([text]).token_ids.tolist(), 0]
        expected.update(zip(ids, ids[1:], ids[2:], strict=False))
    got = {tuple(ids): int(count) for ids, count in zip(unpack(counts.keys).tolist(), counts.counts, strict=True)}
    assert got == expected
    assert counts.num_occurrences == expected.total()
    assert np.all(np.diff(counts.counts) <= 0)  # most frequent first


def test_top_and_bigrams(tiny_bert: Path) -> None:
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", 32)
    counts = count_fragments([[text.text for text in sample_texts(100, seed=9)]], tokenizer, 100, ignore)
    assert len(counts.top(0.1).keys) == -(-len(counts.keys) // 10)
    assert len(counts.top(1.0, max_fragments=7).keys) == 7
    bigrams = counts.bigrams()
    assert bigrams.num_occurrences == counts.num_occurrences
    assert np.all(unpack(bigrams.keys)[:, 0] == 0)
