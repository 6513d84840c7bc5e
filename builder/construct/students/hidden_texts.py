"""Texts as students read them: their hidden rows, looked up once, in batches of about as many tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backends.root.encoder import Attend, padded_attention
from builder.construct.hplm.state_rows import StateRows
from builder.construct.hplm.trainable import Indices
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.training.rows import padded_length

_POOL_TEXTS = 2048
_TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class HiddenBatch:
    """Rows of several texts.

    Shape: hidden `[B, L, H]` fp32; mask `[B, L]`, true for real tokens
    """

    hidden: Tensor
    mask: Tensor

    def attend(self, num_heads: int) -> Attend:
        return padded_attention(num_heads, self.mask)


class HiddenTexts:
    """The hidden rows of texts, on the device to train on."""

    def __init__(self, rows: StateRows, device: torch.device) -> None:
        self.lengths = rows.lengths
        self._set = EncodedSet(rows, [None] * len(rows), rows.lengths, rows.middles)
        self._device = device

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, indices: Indices) -> HiddenBatch:
        hidden, segments = self._set.padded(indices, self._device)
        return HiddenBatch(hidden, segments > 0)

    def all(self, most: int | None = None) -> Iterator[tuple[Indices, HiddenBatch]]:
        """Yield every text once, or the first ones, those of similar lengths together, and which they are."""
        for indices in token_batches(self.lengths, np.arange(len(self))[:most], _TOKENS_AT_ONCE):
            yield indices, self.batch(indices)


def token_batches(lengths: Indices, indices: Indices, max_tokens: int) -> list[Indices]:
    """Make batches of similar lengths, of at most `max_tokens` tokens with padding, or of one text."""
    found: list[list[int]] = []
    for index in indices[np.argsort(lengths[indices], kind="stable")]:
        length = padded_length(lengths[index : index + 1])
        if not found or (len(found[-1]) + 1) * length > max_tokens:
            found.append([])
        found[-1].append(int(index))
    return [np.array(batch) for batch in found]


def shuffled_token_batches(
    lengths: Indices, indices: Indices, max_tokens: int, rng: np.random.Generator
) -> Iterator[Indices]:
    """Make random batches of similar lengths: shuffled pools, sorted inside, batches shuffled again."""
    shuffled = rng.permutation(indices)
    for start in range(0, len(shuffled), _POOL_TEXTS):
        batches = token_batches(lengths, shuffled[start : start + _POOL_TEXTS], max_tokens)
        yield from (batches[each] for each in rng.permutation(len(batches)))


def numbered_token_batches(
    lengths: Indices, groups: Sequence[tuple[float, Indices]], max_tokens: int, seed: int, after_step: int, steps: int
) -> Iterator[Indices]:
    """Yield the batches of the steps after one, counted from 1, each from a group drawn by the groups' shares.

    The batch of a step depends on its number and the seed only.
    """
    shares = np.array([share for share, _ in groups])
    drawn = np.random.default_rng((seed, 0)).choice(len(groups), steps, p=shares / shares.sum())
    passes = [_passes(lengths, group, max_tokens, (seed, number)) for number, (_, group) in enumerate(groups, start=1)]
    for step in range(1, steps + 1):
        batch = next(passes[drawn[step - 1]])
        if step > after_step:
            yield batch


def _passes(lengths: Indices, indices: Indices, max_tokens: int, seed: tuple[int, int]) -> Iterator[Indices]:
    """Yield the batches of one pass after another; each has an order of its own."""
    epoch = 0
    while True:
        yield from shuffled_token_batches(lengths, indices, max_tokens, np.random.default_rng((*seed, epoch)))
        epoch += 1
