"""Heads of a mixed batch: from the upper layers' packed states to the logits of each row, or of each token."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.adapters.pooling import NO_POOLING, PAIR_POOLING, pair_features


@dataclass(frozen=True)
class HeadRow:
    """A row's head, and its tokens `start` to `end` in the packed states.

    `middle` is the number of tokens in a pair's first segment; None for a single text.
    """

    start: int
    end: int
    head: Head
    pooling: str
    middle: int | None = None


def logits(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """Compute the logits of all rows from packed states `[T, H]`: `[C]` each, or `[L, C]` without pooling; in fp32.

    Rows of one head are computed in one product, and so are those of heads with one row that have the same sizes.
    """
    results: dict[int, Tensor] = {}
    for indices in _group_by(range(len(rows)), lambda index: rows[index].pooling == NO_POOLING):
        members = [rows[index] for index in indices]
        compute = _token_logits if members[0].pooling == NO_POOLING else _row_logits
        results.update(zip(indices, compute(states, members), strict=True))
    return [results[index] for index in range(len(rows))]


def _token_logits(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """Compute the rows of each head in one product: `[L, C]` each."""
    results: dict[int, Tensor] = {}
    for indices in _group_by(range(len(rows)), lambda index: id(rows[index].head)):
        members = [rows[index] for index in indices]
        tokens = torch.cat([states[row.start : row.end] for row in members]).float()
        lengths = [row.end - row.start for row in members]
        results.update(zip(indices, torch.split(members[0].head.logits(tokens), lengths), strict=True))
    return [results[index] for index in range(len(rows))]


def _row_logits(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """Compute the rows of each head in one product, and those of heads with one row by size: `[C]` each."""
    heads = [row.head for row in rows]
    features = _dense(_pooled(states, rows), heads)
    results: dict[int, Tensor] = {}
    alone = list[int]()
    for indices in _group_by(range(len(rows)), lambda index: id(heads[index])):
        if len(indices) == 1:
            alone += indices
            continue
        head = heads[indices[0]]
        outputs = torch.addmm(head.bias, torch.stack([features[index] for index in indices]), head.weight.T)
        results.update(zip(indices, outputs, strict=True))
    for indices in _group_by(alone, lambda index: heads[index].weight.shape):
        weights = torch.stack([heads[index].weight for index in indices])
        biases = torch.stack([heads[index].bias for index in indices])
        inputs = torch.stack([features[index] for index in indices])
        outputs = torch.baddbmm(biases[..., None], weights, inputs[..., None])[..., 0]
        results.update(zip(indices, outputs, strict=True))
    return [results[index] for index in range(len(rows))]


def _pooled(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """Pool each row: `[H]`, or `[4·H]` for pairs."""
    pooled = list(_single_states(states, rows))
    if pairs := [index for index, row in enumerate(rows) if row.pooling == PAIR_POOLING]:
        means = [torch.stack(part) for part in zip(*(_pair_means(states, rows[index]) for index in pairs), strict=True)]
        for index, features in zip(pairs, pair_features(*means), strict=True):
            pooled[index] = features
    return pooled


def _single_states(states: Tensor, rows: Sequence[HeadRow]) -> Tensor:
    """Pool each row to its first state, or its mean: `[R, H]`."""
    pooled = states[[row.start for row in rows]].float()
    for index, row in enumerate(rows):
        if row.pooling == "mean":
            torch.mean(states[row.start : row.end], dim=0, dtype=torch.float32, out=pooled[index])
    return pooled


def _pair_means(states: Tensor, row: HeadRow) -> tuple[Tensor, Tensor, Tensor]:
    """Average the row, its first segment and its second; an empty second segment is zero."""
    own = states[row.start : row.end].float()
    middle = len(own) if row.middle is None else row.middle
    first, second = own[:middle].sum(dim=0), own[middle:].sum(dim=0)
    return (first + second) / len(own), first / middle, second / max(1, len(own) - middle)


def _dense(pooled: Sequence[Tensor], heads: Sequence[Head]) -> list[Tensor]:
    """Apply the heads' dense layers where they have one. They are large, so each is read once and none is copied."""
    features = list(pooled)
    dense = [index for index, head in enumerate(heads) if head.dense_weight is not None]
    for indices in _group_by(dense, lambda index: id(heads[index])):
        outputs = heads[indices[0]].features(torch.stack([pooled[index] for index in indices]))
        for index, output in zip(indices, outputs, strict=True):
            features[index] = output
    return features


def _group_by(indices: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        groups.setdefault(key(index), []).append(index)
    return list(groups.values())
