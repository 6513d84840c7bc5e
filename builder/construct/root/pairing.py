"""Texts of two halves made from single ones, so that a root learns what the second half's type means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from backends.root.tokenizer import Text

_ECHO_SHARE = 0.5
_KEPT_WORDS = 0.7


@dataclass(frozen=True)
class Pairing:
    """Makes pairs of a share of the texts, each about as long as the text that it is made from.

    Half of the pairs are a text cut in two; in the others the second half repeats most of the first, since tasks on
    pairs ask what two texts have in common.
    """

    share: float
    seed: int

    def apply(self, texts: Sequence[str], draw: int) -> list[Text]:
        """The same draw gives the same pairs; a text of one word stays single."""
        chance = random.Random(self.seed * 1_000_003 + draw)
        return [_pair(text, chance) if chance.random() < self.share else text for text in texts]


def _pair(text: str, chance: random.Random) -> Text:
    words = text.split()
    if len(words) < 2:
        return text
    first, second = words[: len(words) // 2], words[len(words) // 2 :]
    if chance.random() < _ECHO_SHARE:
        second = [word if chance.random() < _KEPT_WORDS else chance.choice(second) for word in first]
    return " ".join(first), " ".join(second)
