"""Rows of WORDS as callers may make them up, as far as entities are found with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from backends.engine.entities import find_entities
from backends.home import Home
from backends.root.words import RowWords, letter_end
from backends.wire import TextWords, decode_words, encode_words, fold_words, unfold_words
from bench.kit.fuzz.arrays import bad_array
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.target import Target

_LABELS = ("O", "B-animal", "I-animal", "B-tool", "I-tool")
_LOGITS = torch.tensor([[0.0, 2.0, 1.0, 0.0, 0.0]])
"""Every word begins an animal."""
_TEXTS = ("the cat saw a hammer", "naïve 中文 👩‍👧 x", "e\u0301a", "a" * 300)


class Words(Target):
    """Tables of words that do not fit their text or their row, texts that are no UTF-8."""

    name = "words"
    cases = 150_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._good = [encode_words(words_of(text)) for text in _TEXTS]

    def attempt(self, draw: Draw) -> None:
        if draw.happens(0.4):
            good = [draw.choice(self._good) for _ in range(draw.choice((1, 2, 3)))]
            rows = unfold_words(bad_array(draw, fold_words(good)))
        else:
            rows = [draw.damaged(draw.choice(self._good))]
        decoded = [decode_words(row) for row in rows]
        for one in decoded:
            letter_end(one.text, len(one.text))
            if len(one.words):
                find_entities(_LOGITS.expand(len(one.words), -1), one.words, one.text, _LABELS)


def words_of(text: str) -> TextWords:
    """The words of a text, a token each behind a special one."""
    starts, ends, at = [], [], 0
    for word in text.split(" "):
        starts.append(at)
        ends.append(at + len(word))
        at += len(word) + 1
    columns = (range(1, len(starts) + 1), starts, ends)
    return TextWords(text, RowWords(*(np.array(column, np.int32) for column in columns)))
