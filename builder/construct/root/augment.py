"""Changes to the texts of a distillation: pairs made of single texts, strange words, shortened fragments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from backends.plot.header import Store, stores_of
from backends.root.geometry import RootGeometry
from backends.root.tokenizer import RootTokenizer, Text, TokenRows
from builder.settings.root import DistilSettings
from builder.settings.seeds import step_seed

_ECHO_SHARE = 0.5
_KEPT_WORDS = 0.7


@dataclass(frozen=True)
class Pairing:
    """Makes pairs of a share of the texts, each about as long as the text that it is made from.

    Every second pair is a text cut in two; in the others the second segment repeats most of the first, since tasks on
    pairs ask what two texts have in common.
    """

    share: float
    seed: int

    def apply(self, texts: Sequence[str], draw: int) -> list[Text]:
        """The same draw gives the same pairs; a text of one word stays single."""
        rng = random.Random(step_seed(self.seed, draw))
        return [_pair(text, rng) if rng.random() < self.share else text for text in texts]


def _pair(text: str, rng: random.Random) -> Text:
    words = text.split()
    if len(words) < 2:
        return text
    first, second = words[: len(words) // 2], words[len(words) // 2 :]
    if rng.random() < _ECHO_SHARE:
        second = [word if rng.random() < _KEPT_WORDS else rng.choice(second) for word in first]
    return " ".join(first), " ".join(second)


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
        rng = np.random.default_rng((self._seed, draw))
        shares = np.repeat(rng.uniform(0, 2 * self._share, len(rows.lengths)), rows.lengths)
        replaced = (rng.random(len(shares)) < shares) & ~np.isin(rows.token_ids, self._special)
        return replace(rows, token_ids=np.where(replaced, rng.choice(self._words, len(shares)), rows.token_ids))


@dataclass(frozen=True)
class Shortening:
    """Cuts some fragments down as a table does with those that it lacks; `shares` says how many to which store."""

    n: int
    shares: Mapping[Store, float]
    seed: int

    @classmethod
    def of(cls, settings: DistilSettings, n: int) -> Self:
        return cls(n, settings.shares, settings.seed)

    def apply(self, fragments: Tensor, draw: int) -> Tensor:
        """The same draw gives the same fragments.

        Shape: fragments `[T, n]` → `[T, n]`
        """
        rng = torch.Generator().manual_seed(step_seed(self.seed, draw))
        drawn = torch.rand(len(fragments), generator=rng).to(fragments.device)
        shortened = fragments.clone()
        lowest = 0.0
        for store in reversed(stores_of(self.n)[1:]):
            chosen = (drawn >= lowest) & (drawn < lowest + self.shares[store])
            lowest += self.shares[store]
            slots = store.slots(self.n)
            shortened[chosen, : slots.start] = 0
            shortened[chosen, slots.stop :] = 0
        return shortened
