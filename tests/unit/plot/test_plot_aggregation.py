"""Summing fragments' vectors into tokens' states, against a loop over tokens and slots."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch

from backends.plot.aggregation import aggregate
from backends.plot.arrays import Float16Array, Ids
from backends.plot.keys import FragmentShape

HIDDEN = 8


def summed_one_by_one(vectors: Float16Array, row_offsets: Ids, shape: FragmentShape) -> npt.NDArray[np.float32]:
    """Shape: vectors [T, n, H] -> [T, H] float32."""
    states = np.zeros((len(vectors), HIDDEN), np.float32)
    for first, end in pairwise(row_offsets.tolist()):
        for token in range(first, end):
            for slot in range(shape.n):
                fragment = token + shape.before - slot
                if first <= fragment < end:
                    states[token] += vectors[fragment, slot].astype(np.float32)
    return states


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_neighbours_within_the_row_are_summed_and_nothing_else_is(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was not written is not a number here, so whatever reads it shows."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    shape = FragmentShape.centred(n)
    monkeypatch.setattr(torch, "empty", lambda *size, dtype=None: torch.full(size, torch.nan, dtype=dtype))
    for _ in range(20):
        lengths = rng.integers(1, 400, rng.integers(1, 12))
        row_offsets = np.concatenate([[0], np.cumsum(lengths)])
        vectors = rng.standard_normal((row_offsets[-1], n, HIDDEN)).astype(np.float16)

        def gather(start: int, end: int, out: Float16Array, vectors: Float16Array = vectors) -> None:
            out[:] = vectors[start:end].reshape(end - start, -1)

        states = aggregate(gather, row_offsets, HIDDEN, shape).numpy()
        np.testing.assert_allclose(
            states, summed_one_by_one(vectors, row_offsets, shape), atol=1e-5, err_msg=f"seed {seed}"
        )
