"""Tokens that come again and again in the rows that a root learns from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from backends.root.tokenizer import RootTokenizer, TokenRows
from builder.construct.conversion import convert
from builder.construct.refrains import Refrains
from tiny_home import MAX_TOKENS, sample_texts


@pytest.fixture(scope="module")
def tokenizer(tiny_bert: Path) -> RootTokenizer:
    return RootTokenizer(tiny_bert / "tokenizer.json", MAX_TOKENS)


@pytest.fixture(scope="module")
def rows(tokenizer: RootTokenizer) -> TokenRows:
    return tokenizer.encode([" ".join(text.text for text in sample_texts(4, seed)) for seed in range(500)])


def written(tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows, share: float, draw: int = 1) -> TokenRows:
    return Refrains(tokenizer, convert(tiny_bert, 2, MAX_TOKENS).geometry, share, seed=3).apply(rows, draw)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_rows_that_get_one(
    tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows, share: float
) -> None:
    changed = written(tiny_bert, tokenizer, rows, share)
    by_row = [part.any() for part in np.split(changed.token_ids != rows.token_ids, rows.row_offsets[1:-1])]
    drawn_but_nowhere = 0.25 * share  # in a short row a seldom one may begin nowhere
    assert share - drawn_but_nowhere - 0.06 < np.mean(by_row) <= share + 0.06
    for name in ("row_offsets", "type_ids", "positions", "truncated"):
        assert np.array_equal(getattr(changed, name), getattr(rows, name))


def test_special_tokens_stay_and_come_nowhere_else(tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows) -> None:
    changed = written(tiny_bert, tokenizer, rows, share=1.0)
    special = [0, *tokenizer.special_ids.values()]
    assert np.array_equal(np.isin(changed.token_ids, special), np.isin(rows.token_ids, special))


def test_the_same_few_tokens_come_again(tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows) -> None:
    changed = written(tiny_bert, tokenizer, rows, share=1.0)
    of_rows = zip(
        np.split(changed.token_ids, rows.row_offsets[1:-1]),
        np.split(rows.token_ids, rows.row_offsets[1:-1]),
        strict=True,
    )
    new = [Counter(after[after != before].tolist()) for after, before in of_rows]
    assert max(map(len, new)) <= 5
    assert np.mean([max(counts.values(), default=0) > 1 for counts in new]) > 0.3  # these rows are short


def test_a_draw_repeats_and_another_differs(tiny_bert: Path, tokenizer: RootTokenizer, rows: TokenRows) -> None:
    once, again, other = (written(tiny_bert, tokenizer, rows, 0.5, draw).token_ids.tolist() for draw in (1, 1, 2))
    assert once == again != other
