"""Heads of a mixed batch in few products against each row alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.nn import functional

from backends.adapters.head import Head
from backends.adapters.pooling import NO_POOLING, PAIR_POOLING
from backends.engine.heads import HeadRow, logits
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.training.rows import segments_of

HIDDEN = 12


def random_head(chance: random.Random) -> Head:
    labels, inner = chance.randint(1, 6), chance.choice([HIDDEN, 7])
    dense = {}
    if chance.random() < 0.5:
        dense = {"dense_weight": torch.randn(inner, HIDDEN), "dense_bias": torch.randn(inner)}
    else:
        inner = HIDDEN
    return Head(torch.randn(labels, inner), torch.randn(labels), **dense, activation=chance.choice(["tanh", "relu"]))


def head_of_pairs(chance: random.Random) -> Head:
    labels = chance.randint(1, 6)
    return Head(torch.randn(labels, 4 * HIDDEN), torch.randn(labels))


def features_of_pair(own: torch.Tensor, middle: int) -> torch.Tensor:
    """Compute the features element by element."""
    first, second = own[:middle].mean(dim=0).tolist(), own[middle:].mean(dim=0).tolist()
    sizes = [sum(value * value for value in segment) ** 0.5 for segment in (first, second)]
    both = list(zip(first, second, strict=True))
    return torch.tensor(
        [
            own.mean(dim=0).tolist(),
            [abs(one - other) for one, other in both],
            [HIDDEN * one / sizes[0] * other / sizes[1] for one, other in both],
            [one - other for one, other in both],
        ]
    ).reshape(1, -1)


def logits_alone(states: torch.Tensor, row: HeadRow) -> torch.Tensor:
    own = states[row.start : row.end].float()
    if row.pooling == PAIR_POOLING and row.middle is not None:
        own = features_of_pair(own, row.middle)
    elif row.pooling != NO_POOLING:
        own = own[:1] if row.pooling == "cls" else own.mean(dim=0, keepdim=True)
    if row.head.dense_weight is not None:
        dense = own @ row.head.dense_weight.T + row.head.dense_bias
        own = dense.tanh() if row.head.activation == "tanh" else dense.clamp(min=0)
    outputs = own @ row.head.weight.T + row.head.bias
    return outputs if row.pooling == NO_POOLING else outputs[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_heads_at_once_equal_each_alone(dtype: torch.dtype) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(100):
        heads = [
            (random_head(chance), chance.choice(["cls", "mean", NO_POOLING])) for _ in range(chance.randint(1, 12))
        ]
        heads += [(head_of_pairs(chance), PAIR_POOLING) for _ in range(chance.randint(0, 4))]
        rows, start = [], 0
        for _ in range(chance.randint(1, 30)):
            start += chance.randint(0, 2)  # padding
            end = start + chance.randint(2, 9)
            rows.append(HeadRow(start, end, *chance.choice(heads), middle=chance.randint(1, end - start - 1)))
            start = end
        states = torch.randn(start + 1, HIDDEN).to(dtype)
        for row, got in zip(rows, logits(states, rows), strict=True):
            assert got.dtype == torch.float32
            torch.testing.assert_close(got, logits_alone(states, row), rtol=1e-4, atol=1e-4, msg=f"seed {seed}")


def test_a_pair_cut_down_to_its_first_segment_has_an_empty_second_one() -> None:
    states, head = torch.randn(5, HIDDEN), Head(torch.eye(4 * HIDDEN), torch.zeros(4 * HIDDEN))
    (got,) = logits(states, [HeadRow(0, 5, head, PAIR_POOLING)])
    mean = states.mean(dim=0)
    torch.testing.assert_close(got, torch.cat([mean, mean.abs(), torch.zeros(HIDDEN), mean]))


def test_segments_of_padded_rows_equal_those_of_packed_ones() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    torch.manual_seed(seed)
    lengths = [chance.randint(2, 9) for _ in range(20)]
    middles = [chance.choice([None, chance.randint(1, length - 1)]) for length in lengths]
    rows = [torch.randn(length, HIDDEN) for length in lengths]
    head = Head(torch.eye(4 * HIDDEN), torch.zeros(4 * HIDDEN))
    ends = np.cumsum(lengths).tolist()
    columns = zip(lengths, ends, middles, strict=True)
    head_rows = [HeadRow(end - length, end, head, PAIR_POOLING, middle) for length, end, middle in columns]
    packed = logits(torch.cat(rows), head_rows)
    segments = segments_of(np.array(lengths), middles, max(lengths) + 3)
    laid = torch.stack([functional.pad(row, (0, 0, 0, segments.shape[1] - len(row))) for row in rows])
    padded = POOL_FUNCTIONS[PAIR_POOLING](laid, segments)
    torch.testing.assert_close(torch.stack(packed), padded, msg=f"seed {seed}")
