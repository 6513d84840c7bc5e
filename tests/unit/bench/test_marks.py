"""What the benches believe about answers, against the real engine and against answers that are wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.home_load import Askable, Load
from bench.kit.marks import Mark, mark_all, publish_marked, wrong_weights
from bench.kit.timeline import Asked


def scores_of(stack: UpperStack, home: Home, weights: HplmEntry, head: HplmEntry) -> Mapping[str, float]:
    """As answered for random states, with one version's adapters under another one's head."""
    artifact = read_artifact(home.path / weights.folder, stack.fingerprint)
    other = read_artifact(home.path / head.folder, stack.fingerprint)
    mixed = dataclasses.replace(artifact, head=other.head, labels=other.labels)
    ready = stack.ready(1_000 * weights.key + head.key, lambda: mixed)
    (logits,) = stack.run(stack.pack([torch.randn(7, stack.hidden_size)], [ready]), [ready])
    stack.release(ready)
    return dict(zip(mixed.labels, logits.softmax(dim=-1).tolist(), strict=True))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_scores_tell_whose_adapters_and_whose_head_made_them(tiny_home: Home, dtype: str) -> None:
    registry = Registry.open(tiny_home)
    first = mark_all(tiny_home, registry)[0]
    second = publish_marked(tiny_home, registry, first.id, first, first.domain)
    assert second.version == first.version + 1
    stack = UpperStack(RootFolder(tiny_home.root("tiny")), StackSettings(dtype=dtype, num_slots=8))
    for weights in (first, second):
        for head in (first, second):
            scores = scores_of(stack, tiny_home, weights, head)
            for claimed in (first, second):
                asked = Asked(claimed.id, 0.0, 1.0, claimed.version, scores=scores)
                assert wrong_weights([asked]) == (not weights == head == claimed)
                assert not wrong_weights([asked], {(claimed.id, claimed.version)})


def test_marks_of_many_versions_differ() -> None:
    marks = [Mark.of(f"acme/m{number}", version) for number in range(20) for version in range(1, 11)]
    sums = np.array([mark.in_adapters + mark.in_head for mark in marks])
    assert len(np.unique(sums)) > 0.9 * len(marks)
    for mark, gap in zip(marks, sums, strict=True):
        share = 1 / (1 + math.exp(-gap))
        assert mark.fits({"a": share, "b": 1 - share})
        assert sum(other.fits({"a": share, "b": 1 - share}) for other in marks) <= 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_that_stops_early_is_counted() -> None:
    """With nothing to ask for, choosing fails in a way that nobody expected."""
    with Load("grpc://localhost:1", Askable([]), ["cat"], clients=3, seed=1) as load:
        for thread in load._threads:
            thread.join(30)
    assert load.ended_early == 3
    with Load("grpc://localhost:1", Askable(["acme/x"]), ["cat"], clients=2, seed=1, pause_s=30.0) as load:
        pass
    assert load.ended_early == 0
