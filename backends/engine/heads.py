"""From the upper layers' states to what each row's head says: of the whole row, or of each token."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.head import Head
from backends.adapters.pooling import HALVES, NO_POOLING


def pool_cls(states: Tensor, halves: Tensor) -> Tensor:
    return states[:, 0].float()


def pool_mean(states: Tensor, halves: Tensor) -> Tensor:
    return _mean_where(halves > 0, states)


def pool_halves(states: Tensor, halves: Tensor) -> Tensor:
    return contrasted(pool_mean(states, halves), _mean_where(halves == 1, states), _mean_where(halves == 2, states))


def keep_tokens(states: Tensor, halves: Tensor) -> Tensor:
    return states.float()


def contrasted(whole: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """What a head reads of a pair: how its halves' means differ, and how far they point the same way.

    Shape:
        `[..., H]` each → `[..., 4·H]`
    """
    size = whole.shape[-1]
    alike = size * functional.normalize(first, dim=-1) * functional.normalize(second, dim=-1)
    return torch.cat([whole, (first - second).abs(), alike, first - second], dim=-1)


def _mean_where(counts: Tensor, states: Tensor) -> Tensor:
    weights = counts.float()
    summed = torch.einsum("blh,bl->bh", states.float(), weights)
    return summed / weights.sum(dim=1, keepdim=True).clamp(min=1)


POOL_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": pool_cls,
    "mean": pool_mean,
    HALVES: pool_halves,
    NO_POOLING: keep_tokens,
}
"""Padded states → one of each row, or all of them where a task asks about words; in fp32.

Shape:
    states `[B, L, H]`; halves `[B, L]`: 1 in the first half of a pair and in single texts, 2 in the second half, 0
    where there is no token → `[B, H]`, `[B, 4·H]` of halves, or `[B, L, H]`.
"""


@dataclass(frozen=True)
class HeadRow:
    """One row of a batch and what is to be said of it: its tokens `start` to `end`.

    `middle` counts the tokens of a pair's first half.
    """

    start: int
    end: int
    head: Head
    pooling: str
    middle: int | None = None


def logits(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """What the heads say of their rows in packed states `[T, H]`: `[C]`, or `[L, C]` without pooling; in fp32.

    Rows whose heads have the same sizes are computed in one product.
    """
    said: dict[int, Tensor] = {}
    for places in _alike(range(len(rows)), lambda place: rows[place].pooling == NO_POOLING):
        members = [rows[place] for place in places]
        of_members = _of_tokens(states, members) if members[0].pooling == NO_POOLING else _of_rows(states, members)
        said.update(zip(places, of_members, strict=True))
    return [said[place] for place in range(len(rows))]


def _of_tokens(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """Each head's rows in one product."""
    said: dict[int, Tensor] = {}
    for places in _alike(range(len(rows)), lambda place: id(rows[place].head)):
        tokens = torch.cat([states[rows[place].start : rows[place].end] for place in places]).float()
        lengths = [rows[place].end - rows[place].start for place in places]
        said.update(zip(places, torch.split(rows[places[0]].head.logits(tokens), lengths), strict=True))
    return [said[place] for place in range(len(rows))]


def _of_rows(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    heads = [row.head for row in rows]
    features = _dense(_features(states, rows), heads)
    said: dict[int, Tensor] = {}
    for places in _alike(range(len(rows)), lambda place: heads[place].weight.shape):
        weights = torch.stack([heads[place].weight for place in places])
        biases = torch.stack([heads[place].bias for place in places])
        inputs = torch.stack([features[place] for place in places])
        said.update(zip(places, torch.baddbmm(biases[..., None], weights, inputs[..., None])[..., 0], strict=True))
    return [said[place] for place in range(len(rows))]


def _pooled(states: Tensor, rows: Sequence[HeadRow]) -> Tensor:
    """`[R, H]`."""
    pooled = states[[row.start for row in rows]].float()
    for place, row in enumerate(rows):
        if row.pooling == "mean":
            torch.mean(states[row.start : row.end], dim=0, dtype=torch.float32, out=pooled[place])
    return pooled


def _features(states: Tensor, rows: Sequence[HeadRow]) -> list[Tensor]:
    """`[H]` of each row, `[4·H]` of halves."""
    pooled = list(_pooled(states, rows))
    if places := [place for place, row in enumerate(rows) if row.pooling == HALVES]:
        means = [torch.stack(part) for part in zip(*(_means(states, rows[place]) for place in places), strict=True)]
        for place, one in zip(places, contrasted(*means), strict=True):
            pooled[place] = one
    return pooled


def _means(states: Tensor, row: HeadRow) -> tuple[Tensor, Tensor, Tensor]:
    """Of the row, its first half and its second; zero of a half without tokens."""
    own = states[row.start : row.end].float()
    middle = len(own) if row.middle is None else row.middle
    first, second = own[:middle].sum(dim=0), own[middle:].sum(dim=0)
    return (first + second) / len(own), first / middle, second / max(1, len(own) - middle)


def _dense(pooled: Sequence[Tensor], heads: Sequence[Head]) -> list[Tensor]:
    """What goes into each row's classifier. Dense layers are large, so each is read once and none is copied."""
    features = list(pooled)
    dense = [place for place, head in enumerate(heads) if head.dense_weight is not None]
    for places in _alike(dense, lambda place: id(heads[place])):
        of_places = heads[places[0]].features(torch.stack([pooled[place] for place in places]))
        for place, one in zip(places, of_places, strict=True):
            features[place] = one
    return features


def _alike(places: Iterable[int], kind: Callable[[int], Hashable]) -> list[list[int]]:
    """Places of one kind together."""
    found: dict[Hashable, list[int]] = {}
    for place in places:
        found.setdefault(kind(place), []).append(place)
    return list(found.values())
