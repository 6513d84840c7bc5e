from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from backends.errors import CorruptFileError
from backends.root.tokenizer import MOST_CHARACTERS, RootTokenizer, Text, _head, exchanged
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
        ("x" * 6_000, False),
        ("x" * 5_000 + ",cat.dog", False),
        ("x" * 5_000 + "漢cat", False),
        ("\u200b" * 5_000 + "cat,dog", False),
        ("\ufffd" * 5_000 + "cat", False),
        ("\u0301" * 5_000 + "cat", False),
        ("x" + "\u0301" * 4_000 + "cat", False),
        ("x" + "\ufffd" * 4_000 + "cat", False),
        ("x" * 3_000 + "≠cat", False),
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
        "points behind",
        "an ideograph behind",
        "nothing to see first",
        "removed first",
        "accents first",
        "accents in it",
        "removed in it",
        "a picture that is a sign",
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


OF_ONE_WORD = ("x", "cat", "कि", "カ", "é", "\u0301", "😀", "€", "\u200b", "\ufffd", "\x00", "ａ", "ß", "½", "7")
PIECES = (*OF_ONE_WORD, "漢", ",", "_", "+", "≠", " ", "\n")


def test_long_texts_give_what_8192_characters_give(tiny_bert: Path, seed: int) -> None:
    """Whether or not the second window was tokenised, words are wanted, or texts are pairs."""
    rng = random.Random(seed)

    def drawn(pieces: Sequence[str]) -> str:
        return "".join(rng.choice(pieces) * rng.choice([1, 3, 700, 4_096, 5_000]) for _ in range(rng.randint(1, 4)))

    plain = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    plain.enable_truncation(32)
    texts: list[Text] = [drawn(PIECES) for _ in range(60)]
    # Where both segments fill a row, which has one token more depends on their lengths.
    texts += [(drawn(OF_ONE_WORD), drawn(OF_ONE_WORD)) for _ in range(20)]
    heads = [_head(text, MOST_CHARACTERS) for text in texts]
    tokenizer = RootTokenizer(tiny_bert / "tokenizer.json", 32)
    wanted = [plain.encode(*((head,) if isinstance(head, str) else head)).ids for head in heads]
    for with_words in ([], [True] * len(texts)):
        rows = tokenizer.encode(texts, with_words)
        found = [ids.tolist() for ids in np.split(rows.token_ids, rows.row_offsets[1:-1])]
        assert found == wanted
    skipped = [tokenizer._is_one_word_each(plain.encode("x" * 4_096), head) for head in heads if isinstance(head, str)]
    assert any(skipped) and not all(skipped)


def test_special_tokens_in_a_text_are_plain_characters(tiny_bert: Path) -> None:
    rows = RootTokenizer(tiny_bert / "tokenizer.json", 32).encode(["cat [PAD] dog [SEP] cat"])
    assert 0 not in rows.token_ids
    assert (rows.token_ids == 3).sum() == 1  # the template's own [SEP]


@pytest.mark.parametrize(("pad", "names"), [(0, ("<pad>", "<s>", "</s>")), (2, ("<s>", "</s>", "<pad>"))])
def test_special_tokens_are_plain_characters_also_where_pieces_are_words(
    tmp_path: Path, pad: int, names: Sequence[str]
) -> None:
    """In such a vocabulary the special tokens are pieces, and likelier than all others."""
    letters = [(letter, -5.0) for letter in "▁<>/pads"]
    plain = Tokenizer(models.Unigram([*((name, 0.0) for name in (*names, "<unk>")), *letters], unk_id=3))
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    plain.add_special_tokens(list(names))
    ids = {name: plain.token_to_id(name) for name in names}
    plain.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])]
    )
    plain.save(str(tmp_path / "tokenizer.json"))
    rows = RootTokenizer(tmp_path / "tokenizer.json", 64, pad).encode(["a <pad> a", "<s>ada</s>", "dada"])
    found = exchanged(rows.token_ids, pad)
    assert ids["<pad>"] not in found
    assert [int((found == ids[name]).sum()) for name in ("<s>", "</s>")] == [3, 3], "only the template's own"
    assert 3 not in found, "no unknown piece"


@pytest.mark.parametrize("text", ["cat " + "漢" * 9_000, "cat\n" + "dog\n" * 4_000, "cat " + "x," * 6_000])
@pytest.mark.parametrize("max_tokens", [32, 128, 512])
def test_a_blank_near_the_beginning_cuts_nothing(tiny_bert: Path, text: str, max_tokens: int) -> None:
    rows = RootTokenizer(tiny_bert / "tokenizer.json", max_tokens).encode([text])
    plain = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    plain.enable_truncation(max_tokens)
    assert rows.truncated.all() and rows.token_ids.tolist() == plain.encode(text).ids


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
