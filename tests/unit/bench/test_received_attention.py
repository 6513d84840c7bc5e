"""Words by the attention that they receive, against a loop over heads and tokens."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from adapter_reference import KINDS, random_artifact
from backends.adapters.head import Head
from backends.engine.exits import NEVER, Early, Exit
from backends.engine.pruning import Prunable
from backends.engine.stack import StackSettings, UpperStack
from backends.root.geometry import RootGeometry
from backends.root.word_marks import BEGINS_WORD, OF_NO_WORD
from bench.kit.random_root import random_root
from bench.kit.received_attention import AttentiveStack, received_attention

GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 4, 64, 2, 1e-12, "gelu")
FP32 = StackSettings(num_slots=2, dtype="fp32")


def test_received_is_what_all_heads_of_all_tokens_give(seed: int) -> None:
    torch.manual_seed(seed)
    queries, keys = torch.randn(2, 7, 32)
    received = [0.0] * 7
    for head in range(4):
        part = slice(8 * head, 8 * head + 8)
        for query in queries[:, part]:
            weights = [float((query @ key / 8**0.5).exp()) for key in keys[:, part]]
            received = [sum_ + weight / sum(weights) for sum_, weight in zip(received, weights, strict=True)]
    assert received_attention(queries, keys, 4).tolist() == pytest.approx(received, rel=1e-4), f"seed {seed}"


@pytest.mark.parametrize("alpha", [0.0, 9.0])
def test_rows_keep_all_words_or_the_one_that_receives_most(tmp_path: Path, seed: int, alpha: float) -> None:
    """At the first exit, so that one layer's attention counts."""
    torch.manual_seed(seed)
    root = random_root(tmp_path / "root", GEOMETRY, seed=1)
    artifact = random_artifact(random.Random(seed), root, KINDS[0])
    stacks = AttentiveStack(root, FP32), UpperStack(root, FP32)
    rows = [torch.randn(length, 32).half() for length in (5, 9, 2, 16)]
    marks = [np.array([OF_NO_WORD, *[BEGINS_WORD] * (len(row) - 2), OF_NO_WORD], np.uint8) for row in rows]
    head = Head(torch.randn(len(artifact.labels), artifact.head.hidden_size), torch.zeros(len(artifact.labels)))
    prunable = [Prunable(alpha, each) for each in marks]
    exits = [[Exit(1, head, 1.0, NEVER, prunable=each) for each in prunable], [None] * len(rows)]
    early: dict[int, Early] = {}
    logits = []
    for stack, own in zip(stacks, exits, strict=True):
        ready = [stack.ready(0, lambda: artifact) for _ in rows]
        logits.append(stack.run(stack.pack(rows, ready), ready, exits=own, on_early=early.update))
    kept = [early[index].kept for index in range(len(rows))]
    if alpha:
        assert kept == [min(1.0, 3 / len(row)) for row in rows], f"seed {seed}"
    else:
        assert kept == [1.0] * len(rows), f"seed {seed}"
        for one, other in zip(*logits, strict=True):
            torch.testing.assert_close(one, other)
