"""Words that are not those of their text or row are rejected before a row is computed."""

from __future__ import annotations

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from backends.root.words import RowWords
from backends.wire import TextWords, decode_words, encode_words


def words(*rows: tuple[int, int, int], text: str = "the cat") -> TextWords:
    table = np.array(rows, np.int32).reshape(-1, 3)
    return TextWords(text, RowWords(*np.ascontiguousarray(table.T)))


def test_words_of_a_text_come_back() -> None:
    decoded = decode_words(encode_words(words((1, 0, 3), (2, 4, 7))))
    assert decoded.text == "the cat"
    assert decoded.words.starts.tolist() == [0, 4]
    assert decoded.words.have_tokens_of(3)
    assert not decoded.words.have_tokens_of(2)
    assert len(decode_words(encode_words(words())).words) == 0


@pytest.mark.parametrize("row", [(1, -1, 3), (1, 3, 3), (1, 4, 3), (1, 4, 8)])
def test_a_word_beyond_its_text(row: tuple[int, int, int]) -> None:
    table = np.array([1, *row], np.int32)
    with pytest.raises(InvalidArgumentError, match="beyond its text"):
        decode_words(table.tobytes() + b"the cat")


def test_a_text_that_is_not_utf_8() -> None:
    with pytest.raises(InvalidArgumentError, match="not UTF-8 at byte 1"):
        decode_words(np.zeros(1, np.int32).tobytes() + b"a\xff")
