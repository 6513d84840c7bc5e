from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from backends.errors import CorruptFileError
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import sample_texts


def test_rows_are_the_texts_one_by_one(tiny_bert: Path) -> None:
    texts = [text.text for text in sample_texts(40, seed=3)]
    rows = RootTokenizer(tiny_bert / "tokenizer.json", 32).encode(texts)
    plain = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    for number, text in enumerate(texts):
        start, end = rows.row_offsets[number], rows.row_offsets[number + 1]
        assert rows.token_ids[start:end].tolist() == plain.encode(text).ids
        assert rows.positions[start:end].tolist() == list(range(end - start))
    assert not rows.truncated.any()


def test_long_texts_are_cut_and_say_so(tiny_bert: Path) -> None:
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", 8)
    rows = tokenizer.encode(["cat " * 100, "cat"])
    assert rows.lengths.tolist() == [8, 3]
    assert rows.truncated.tolist() == [True, False]


def test_ten_megabytes_are_cut_without_being_read(tiny_bert: Path) -> None:
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", 32)
    rows = tokenizer.encode(["cat dog " * 1_300_000])
    assert rows.truncated.tolist() == [True]
    assert np.array_equal(rows.token_ids, tokenizer.encode(["cat dog " * 40]).token_ids)


@pytest.mark.parametrize(
    ("text", "truncated"),
    [
        ("x" * 6_000 + " my cat is lovely", False),  # one unknown word, then the text
        (" ".join("y" * 700 for _ in range(10)) + " cat", False),
        (" " * 7_000 + "my cat is lovely", False),
        ("my cat is lovely" + " " * 60_000, False),
        ("my cat is lovely " * 3_000, True),
        ("my cat is lovely" + "\n" * 10_000_000, False),
        ("x" * 6_000, True),
        ("z" * 1_000_000 + " cat", True),
        (" " * 1_000_000 + " cat", True),
    ],
    ids=[
        "long word",
        "long words",
        "blanks first",
        "blanks last",
        "long",
        "many blanks",
        "one word",
        "endless word",
        "all blanks",
    ],
)
def test_long_texts_are_what_the_whole_text_gives(tiny_bert: Path, text: str, truncated: bool) -> None:
    rows = RootTokenizer(tiny_bert / "tokenizer.json", 32).encode(["cat", text])
    assert rows.truncated.tolist() == [False, truncated]
    if len(text) < 1_000_000:
        plain = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
        plain.enable_truncation(32)
        assert rows.token_ids[rows.row_offsets[1] :].tolist() == plain.encode(text).ids


def test_special_tokens_in_a_text_are_plain_characters(tiny_bert: Path) -> None:
    rows = RootTokenizer(tiny_bert / "tokenizer.json", 32).encode(["cat [PAD] dog [SEP] cat"])
    assert 0 not in rows.token_ids
    assert (rows.token_ids == 3).sum() == 1  # the template's own [SEP]


def test_where_the_second_halves_begin(tiny_bert: Path) -> None:
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", max_tokens=8)
    pairs = [("cat", "dog"), ("cat", "dog " * 20), ("cat " * 20, "dog " * 20), "cat dog"]
    rows = tokenizer.encode(pairs)
    separator, dog = tokenizer.special_ids["[SEP]"], tokenizer.encode(["dog"]).token_ids[1]
    *of_pairs, of_single = zip(rows.middles, np.split(rows.token_ids, rows.row_offsets[1:-1]), strict=True)
    for middle, ids in of_pairs:
        assert middle is not None
        assert ids[middle - 1] == separator
        assert ids[middle] == dog
        assert dog not in ids[:middle]
    assert of_single[0] is None


def test_no_texts(tiny_bert: Path) -> None:
    rows = RootTokenizer(tiny_bert / "tokenizer.json", 32).encode([])
    assert rows.row_offsets.tolist() == [0]


def test_a_broken_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptFileError, match="tokenizer"):
        RootTokenizer(tmp_path / "tokenizer.json", 8)
