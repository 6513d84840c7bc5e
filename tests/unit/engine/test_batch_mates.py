"""A row gets the same answer whatever rows share its batch, where adapters stand in the same places."""

from __future__ import annotations

import random

import pytest
import torch

from adapter_reference import KINDS, random_artifact
from backends.engine.compute_pool import ComputePool
from backends.engine.layouts import LAYOUTS, Sharing
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.store import RootFolder
from seeds import SEED

LAST_DIGITS = 1e-5
"""Of the largest logit: heads are computed in fp32, for the rows of a batch together."""
LENGTH, NUM_ROWS, EQUAL_ROWS = 32, 72, 48


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_answers_do_not_depend_on_batch_mates(built_home: Home, dtype: str, kind: str) -> None:
    """Rows of few hPLMs, whose segments are long where they are neighbours. Random LoRAs have places of their own."""
    root, rng = RootFolder(built_home.root("tiny")), random.Random(SEED)
    torch.manual_seed(SEED)
    artifacts = [random_artifact(rng, root, kind) for _ in range(1 if kind == "lora" else 3)]
    settings = StackSettings(dtype=dtype, num_slots=len(artifacts) + 1)
    pool = ComputePool(2, torch.device("cpu"))
    stack = UpperStack(root, settings, pool, layout_of=lambda _: LAYOUTS["ragged"](Sharing()))
    hplms = [stack.ready(key, lambda one=one: one) for key, one in enumerate(artifacts, start=1)]  # type: ignore[misc]
    of_row = [hplms[number % len(hplms)] for number in range(NUM_ROWS)]
    sizes = [LENGTH if number < EQUAL_ROWS else rng.randint(1, LENGTH) for number in range(NUM_ROWS)]
    rows = [torch.randn(size, root.geometry.hidden_size).half() for size in sizes]

    def answers(order: list[int], at_once: int) -> dict[int, torch.Tensor]:
        found = {}
        for first in range(0, NUM_ROWS, at_once):
            mates = order[first : first + at_once]
            own = [of_row[number] for number in mates]
            found.update(zip(mates, stack.run(stack.pack([rows[number] for number in mates], own), own), strict=True))
        return found

    wanted = answers(
        sorted(range(NUM_ROWS), key=lambda number: (number >= EQUAL_ROWS, number % len(hplms))), EQUAL_ROWS
    )
    for at_once in (1, 2, 13, NUM_ROWS):
        for number, got in answers(rng.sample(range(NUM_ROWS), NUM_ROWS), at_once).items():
            far = (got - wanted[number]).abs().max() / wanted[number].abs().max()
            assert far <= LAST_DIGITS, f"seed {SEED}: row {number}, {at_once} at once: {far}"
