"""Training batches of token rows: similar lengths together, in an order that a seed fixes.

On a CPU a bf16 product is compiled for each shape that it meets, so rows are padded, and fragments filled up, to shapes
that recur. An epoch of a tuning takes less time for it, and the process less memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.plot.keys import CENTRED_TRIGRAM, FragmentShape, fragments
from backends.root.lower import Aggregation, FragmentEncoder, sum_overlapping
from backends.root.tokenizer import RootTokenizer, TokenRows

_POOL_TEXTS = 4096
_LENGTH_STEP = 8
_FILLED_STEP = 64


@dataclass(frozen=True)
class PaddedRows:
    """The same rows twice: flat, as fragments see them, and padded, as a plain transformer does.

    Shape:
        token_ids, mask, types: `[B, L]`; fragments: `[T, n]`; positions, flat_types: `[T]` with T = mask.sum().
    """

    token_ids: Tensor
    types: Tensor
    mask: Tensor
    fragments: Tensor
    positions: Tensor
    flat_types: Tensor

    def to(self, device: torch.device) -> PaddedRows:
        return PaddedRows(**{name: tensor.to(device) for name, tensor in vars(self).items()})

    def pad(self, flat: Tensor) -> Tensor:
        """`[T, H]` → `[B, L, H]`, zero where there is no token."""
        padded = flat.new_zeros(*self.mask.shape, flat.shape[-1])
        return padded.masked_scatter(self.mask[..., None], flat)


def padded_rows(rows: TokenRows, shape: FragmentShape = CENTRED_TRIGRAM, max_tokens: int | None = None) -> PaddedRows:
    """`max_tokens`: as for `padded_length`."""
    lengths = rows.lengths
    mask = np.arange(padded_length(lengths, max_tokens)) < lengths[:, None]  # (B, L)

    def spread(flat: npt.NDArray[np.int64]) -> Tensor:
        padded = np.zeros(mask.shape, np.int64)
        padded[mask] = flat
        return torch.from_numpy(padded)

    return PaddedRows(
        token_ids=spread(rows.token_ids),
        types=spread(rows.type_ids),
        mask=torch.from_numpy(mask),
        fragments=torch.from_numpy(fragments(rows.token_ids, rows.row_offsets, shape)),
        positions=torch.from_numpy(rows.positions),
        flat_types=torch.from_numpy(rows.type_ids),
    )


def padded_length(lengths: npt.NDArray[np.int64], max_tokens: int | None = None) -> int:
    """Return a batch's length, at most `max_tokens`, where a model has no positions beyond."""
    longest = int(lengths.max(initial=0))
    recurring = longest + -longest % _LENGTH_STEP
    return recurring if max_tokens is None else min(recurring, max_tokens)


def distinct_fragments(fragments: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones, some of them more than once, and where each of those given is among them.

    Shape: `[T, n]` → `[U, n]`, `[T]`
    """
    unique, inverse = torch.unique(fragments, dim=0, return_inverse=True)
    return filled_up(unique), inverse


def filled_up(values: Tensor) -> Tensor:
    """Fill up to a number of rows that recurs, by repeating the last one.

    Shape: `[M, …]` → `[M', …]`.
    """
    return torch.cat([values, values[-1:].expand(-len(values) % _FILLED_STEP, -1)])


def segments_of(lengths: npt.NDArray[np.int64], middles: Sequence[int | None], length: int) -> Tensor:
    """The segment of each token: 1 the first, or a single text; 2 the second; 0 where there is no token.

    Shape:
        lengths `[B]`, middles B → `[B, length]`.
    """
    ends_of_first = np.array([own if middle is None else middle for own, middle in zip(lengths, middles, strict=True)])
    positions = np.arange(length)
    is_token = positions < lengths[:, None]
    return torch.from_numpy(is_token.astype(np.int64) + (is_token & (positions >= ends_of_first[:, None])))


def length_batches(texts: Sequence[str], tokenizer: RootTokenizer, max_tokens: int, seed: int) -> Iterator[list[str]]:
    """One pass over the texts in batches of at most `max_tokens` tokens, padding included."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(texts))
    for start in range(0, len(texts), _POOL_TEXTS):
        pool = [texts[index] for index in shuffled[start : start + _POOL_TEXTS]]
        batches = list(_by_length(pool, tokenizer.encode(pool).lengths, max_tokens))
        for index in rng.permutation(len(batches)):
            yield batches[index]


def numbered_batches(
    texts: Sequence[str], tokenizer: RootTokenizer, max_tokens: int, seed: int, steps: range
) -> Iterator[list[str]]:
    """The batches of these steps, counted from 1 over as many passes as it takes; each pass has an order of its own."""
    step = epoch = 0
    while step + 1 < steps.stop:
        for batch in length_batches(texts, tokenizer, max_tokens, seed + epoch):
            step += 1
            if step >= steps.stop:
                return
            if step >= steps.start:
                yield batch
        epoch += 1


def _by_length(pool: list[str], lengths: npt.NDArray[np.int64], max_tokens: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for index in np.argsort(lengths, kind="stable"):
        if batch and (len(batch) + 1) * padded_length(lengths[index : index + 1]) > max_tokens:
            yield batch
            batch = []
        batch.append(pool[index])
    if batch:
        yield batch


def boundary_states(
    lower: FragmentEncoder, aggregation: Aggregation, rows: PaddedRows, fragments: Tensor | None = None
) -> Tensor:
    """Compute the upper layers' input for the real tokens, fp32 but for autocast; `fragments` replace the rows' own.

    Shape: fragments `[T, n]` → `[T, H]`
    """
    fragments = rows.fragments if fragments is None else fragments
    distinct, inverse = distinct_fragments(fragments)
    summed = sum_overlapping(lower(distinct)[inverse].float(), fragments.shape[1] // 2)
    states: Tensor = aggregation(summed, rows.positions, rows.flat_types)
    return states
