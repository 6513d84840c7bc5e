"""The same few tokens again and again in a text, as markup, names and tables have them.

A corpus of plain sentences holds no such texts, and to a root that has never seen any, what comes again is as strange
the tenth time as the first.
"""

from __future__ import annotations

import string
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from backends.root.geometry import RootGeometry
from backends.root.tokenizer import RootTokenizer, TokenRows

_MOST_TOKENS = 5
_MARK_SHARE = 0.5
_LEAST_OFTEN, _MOST_OFTEN = 1 / 64, 1 / 8
"""How often a refrain begins: per token of the text."""
_STREAM = 1
"""So that the draws are none of those that noise with the same seed makes."""

Ids = npt.NDArray[np.int64]


class Refrains:
    """Writes a refrain over some tokens of some rows: one to five tokens, half of them marks such as `<` or `-`.

    Args:
        tokenizer: Its special tokens stay, and come nowhere else.
        geometry: Of the root.
        share: Of the rows, that get one.
        seed: Of the draws.
    """

    def __init__(self, tokenizer: RootTokenizer, geometry: RootGeometry, share: float, seed: int) -> None:
        self._share, self._seed = share, seed
        self._special = np.array(sorted(tokenizer.special_ids.values()), np.int64)
        self._words = np.setdiff1d(np.arange(1, geometry.vocab_size), self._special)
        marks = np.unique(tokenizer.encode([" ".join(string.punctuation)]).token_ids)
        self._marks = np.setdiff1d(marks, self._special)

    def apply(self, rows: TokenRows, draw: int) -> TokenRows:
        """The same draw gives the same rows."""
        chance = np.random.default_rng((self._seed, draw, _STREAM))
        token_ids = rows.token_ids.copy()
        for row in np.split(token_ids, rows.row_offsets[1:-1]):
            if chance.random() < self._share:
                self._write(row, chance)
        return replace(rows, token_ids=np.where(np.isin(rows.token_ids, self._special), rows.token_ids, token_ids))

    def _write(self, row: Ids, chance: np.random.Generator) -> None:
        """At places of its own; where two overlap, the later one stays whole."""
        refrain = self._drawn(chance)
        often = np.exp(chance.uniform(np.log(_LEAST_OFTEN), np.log(_MOST_OFTEN)))
        for start in np.flatnonzero(chance.random(len(row)) < often):
            row[start : start + len(refrain)] = refrain[: len(row) - start]

    def _drawn(self, chance: np.random.Generator) -> Ids:
        length = int(chance.integers(1, _MOST_TOKENS + 1))
        is_mark = chance.random(length) < (_MARK_SHARE if len(self._marks) else 0)
        marks = chance.choice(self._marks, length) if is_mark.any() else np.zeros(length, np.int64)
        drawn: Ids = np.where(is_mark, marks, chance.choice(self._words, length))
        return drawn
