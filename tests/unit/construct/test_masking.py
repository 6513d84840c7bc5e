"""What is hidden from a masked language model, counted."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import sample_texts
from builder.construct.domain.masking import Masking


def test_shares_and_neighbours(built_home: Home) -> None:
    root = RootFolder(built_home.root("tiny"))
    tokenizer = root.tokenizer()
    rows = tokenizer.encode([text.text for text in sample_texts(2000, seed=random.randrange(1 << 30))])
    masked = Masking(tokenizer, root.geometry).apply(rows, seed=5)
    chosen, hidden = masked.chosen.numpy(), masked.rows.token_ids[masked.rows.mask].numpy()
    special = np.isin(rows.token_ids, list(tokenizer.special_ids.values()))
    is_mask = hidden == tokenizer.special_ids["[MASK]"]
    assert not chosen[special].any()
    assert chosen.sum() / (~special).sum() == pytest.approx(0.15, abs=0.01)
    assert is_mask[chosen].mean() == pytest.approx(0.8, abs=0.03)
    assert (hidden == rows.token_ids)[chosen].mean() == pytest.approx(0.1, abs=0.03)
    assert np.array_equal(hidden[~chosen], rows.token_ids[~chosen])
    assert np.array_equal(masked.targets.numpy(), rows.token_ids[chosen])
    # What is hidden in the middle of a fragment is hidden from the fragments beside it.
    fragments = masked.rows.fragments.numpy()
    assert np.array_equal(fragments[:, 1], hidden)
    for start, end in pairwise(rows.row_offsets[:50].tolist()):
        assert np.array_equal(fragments[start : end - 1, 2], hidden[start + 1 : end])
        assert np.array_equal(fragments[start + 1 : end, 0], hidden[start : end - 1])


def test_the_seed_decides(built_home: Home) -> None:
    root = RootFolder(built_home.root("tiny"))
    tokenizer = root.tokenizer()
    rows, masking = (
        tokenizer.encode([text.text for text in sample_texts(50, seed=1)]),
        Masking(tokenizer, root.geometry),
    )
    one, again, other = (masking.apply(rows, seed).rows.token_ids for seed in (1, 1, 2))
    assert one.equal(again)
    assert not one.equal(other)


def test_a_tokenizer_without_a_mask_token(built_home: Home, tmp_path: Path) -> None:
    root = RootFolder(built_home.root("tiny"))
    content = Tokenizer.from_file(str(root.path / "tokenizer.json")).to_str().replace("[MASK]", "[BLANK]")
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InvalidArgumentError, match="--no-pretrain"):
        Masking(RootTokenizer(path, 32), root.geometry)
