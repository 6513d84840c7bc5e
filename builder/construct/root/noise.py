"""Words that a corpus does not have, put into its texts: a root learns what its model makes of those too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from backends.root.geometry import RootGeometry
from backends.root.tokenizer import RootTokenizer, TokenRows


class TokenNoise:
    """Replaces tokens by others of the vocabulary, all of these as likely.

    A model says something of any row of tokens, so what it says can be learnt from texts that make no sense; and a
    corpus of a few subjects holds a small part of the fragments that other texts are made of.

    Args:
        tokenizer: Its special tokens stay, and come nowhere else.
        geometry: Of the root.
        share: Of the tokens, in the mean over the rows; each row draws its own, from nothing to twice that.
        seed: Of the draws.
    """

    def __init__(self, tokenizer: RootTokenizer, geometry: RootGeometry, share: float, seed: int) -> None:
        self._share, self._seed = share, seed
        self._special = np.array(sorted(tokenizer.special_ids.values()), np.int64)
        self._words = np.setdiff1d(np.arange(1, geometry.vocab_size), self._special)

    def apply(self, rows: TokenRows, draw: int) -> TokenRows:
        """The same draw gives the same rows."""
        chance = np.random.default_rng((self._seed, draw))
        shares = np.repeat(chance.uniform(0, 2 * self._share, len(rows.lengths)), rows.lengths)
        replaced = (chance.random(len(shares)) < shares) & ~np.isin(rows.token_ids, self._special)
        return replace(rows, token_ids=np.where(replaced, chance.choice(self._words, len(shares)), rows.token_ids))
