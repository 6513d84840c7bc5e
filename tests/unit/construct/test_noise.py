"""Replaced tokens in the rows that a root learns from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.root.tokenizer import RootTokenizer, TokenRows
from bench.kit.tiny_home import MAX_TOKENS, sample_texts
from builder.construct.root.augment import TokenNoise
from builder.construct.root.conversion import convert


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> RootTokenizer:
    return RootTokenizer(tiny_bert / "tokenizer.json", MAX_TOKENS)


@pytest.fixture(scope="module")
def rows(tokenizer: RootTokenizer) -> TokenRows:
    return tokenizer.encode([text.text for text in sample_texts(1000, seed=5)])


def noise(tiny_bert: Path, tokenizer: RootTokenizer, share: float, seed: int = 3) -> TokenNoise:
    return TokenNoise(tokenizer, convert(tiny_bert, 2, MAX_TOKENS).geometry, share, seed)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_the_share_that_is_replaced(tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows, share: float) -> None:
    noisy = noise(tiny_bert, tokenizer, share).apply(rows, draw=1)
    special = np.isin(rows.token_ids, list(tokenizer.special_ids.values()))
    changed = noisy.token_ids != rows.token_ids
    assert not changed[special].any()
    assert not np.isin(noisy.token_ids[~special], [0, *tokenizer.special_ids.values()]).any()
    assert changed[~special].mean() == pytest.approx(share, abs=0.02)
    by_row = [part.mean() for part in np.split(changed, rows.row_offsets[1:-1])]
    assert share == 0 or np.std(by_row) > 0.2 * share  # rows with hardly any noise, and rows with much
    for name in ("row_offsets", "type_ids", "positions", "truncated"):
        assert np.array_equal(getattr(noisy, name), getattr(rows, name))


def test_a_draw_repeats_and_another_differs(tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows) -> None:
    def ids(seed: int, draw: int) -> list[int]:
        found: list[int] = noise(tiny_bert, tokenizer, 0.3, seed).apply(rows, draw).token_ids.tolist()
        return found

    assert ids(3, 1) == ids(3, 1) != ids(3, 2)
    assert ids(3, 1) != ids(4, 1)
