"""hPLMs in one batch that were tuned against layers that round as int8 does, against plain ones, and not at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from adapter_reference import random_artifact, reference_logits
from backends.adapters.bank import HplmArtifact
from backends.adapters.recipe import AdapterRecipe
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.int8_file import Smoothing
from backends.root.int8_instructions import int8_instructions
from backends.root.store import RootFolder
from bench.kit.rounded_upper import rounded_upper
from bench.kit.tiny_home import ignore
from builder.construct.hplm.tune import EncodedSet, Upper, tune
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.task_objectives import Classification
from builder.profiling.preparing_int8 import smoothing_of_states
from builder.settings.hplm import LORA_EVERYWHERE, TuneSettings
from row_errors import RowErrors
from seeds import SEED

pytestmark = pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")

LABELS = ("x", "y", "z")
ROUNDED, PLAIN, UNTUNED = range(3)
RECIPES = (replace(LORA_EVERYWHERE, rank=4), AdapterRecipe(width=4))
BATCHES = 6
HAS_VNNI = int8_instructions() == "VNNI"
"""Without it weights in int8 have three quarters as many levels."""
EXACT = {"int8": 3e-1 if HAS_VNNI else 5e-1, "fp32": 1e-4}
MEDIAN = {"int8": 2e-2 if HAS_VNNI else 4e-2, "fp32": 1e-5}
"""Shares of a row's largest logit; those of `test_stack`."""
ALIKE = {"int8": 1e-1, "fp32": 1e-5}
"""States are rounded to bf16, and sums of adapters begin elsewhere in a larger batch."""


@dataclass(frozen=True)
class Mixed:
    """A root with its smoothing, and hPLMs of each kind by their keys."""

    root: RootFolder
    smoothing: Smoothing
    artifacts: dict[int, HplmArtifact]
    kinds: dict[int, int]

    def stack(self, dtype: str) -> UpperStack:
        settings = StackSettings(dtype=dtype, num_slots=len(self.artifacts) + 1)
        return UpperStack(self.root, settings, smoothing=self.smoothing)

    def answers(self, stack: UpperStack, keys: Sequence[int], rows: Sequence[Tensor]) -> list[Tensor]:
        hplms = [stack.ready(key, lambda key=key: self.artifacts[key]) for key in keys]  # type: ignore[misc]
        try:
            return stack.run(stack.pack(rows, hplms), hplms)
        finally:
            for hplm in hplms:
                stack.release(hplm)


@pytest.fixture(scope="module")
def mixed(built_home: Home) -> Mixed:
    torch.manual_seed(SEED)
    rng, root = random.Random(SEED), RootFolder(built_home.root("tiny"))
    smoothing = smoothing_of_states(root, random_rows(root, [9] * 16))
    activation, geometry = root.geometry.activation, root.geometry
    layers = {ROUNDED: rounded_upper(root.upper(), activation, smoothing), PLAIN: root.upper()}
    artifacts = [
        tuned(root, Upper(of_kind, geometry), recipe, rng) for of_kind in layers.values() for recipe in RECIPES
    ]
    artifacts += [random_artifact(rng, root, kind) for kind in ("identity", "norms")]
    kinds = [ROUNDED, ROUNDED, PLAIN, PLAIN, UNTUNED, UNTUNED]
    return Mixed(root, smoothing, dict(enumerate(artifacts, 1)), dict(enumerate(kinds, 1)))


def random_rows(root: RootFolder, lengths: Sequence[int]) -> list[Tensor]:
    return [torch.randn(length, root.geometry.hidden_size).half() for length in lengths]


def tuned(root: RootFolder, upper: Upper, recipe: AdapterRecipe, rng: random.Random) -> HplmArtifact:
    """Tune an hPLM on a random task: the rows of each label point in a direction of its own."""
    texts = [LabelledText("a", rng.choice(LABELS)) for _ in range(48)]
    task, lengths = Classification(LABELS, texts), [rng.randint(3, 9) for _ in texts]
    targets, directions = task.targets(texts, [None] * len(texts)), torch.randn(len(LABELS), root.geometry.hidden_size)
    rows = [
        (row + directions[int(target)]).half() for row, target in zip(random_rows(root, lengths), targets, strict=True)
    ]
    train = EncodedSet(rows, targets, np.array(lengths), [None] * len(rows))
    settings = TuneSettings(recipe=recipe, epochs=3, learning_rate=2e-2)
    found = tune(upper, task, train, train, settings, ignore)
    assert found.metrics[task.main_metric] > 0.6, f"seed {SEED}: nothing was learned"
    return HplmArtifact("x/y", root.fingerprint, "classification", LABELS, found.pooling, found.adapters, found.head)


@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_each_row_of_a_mixed_batch_is_answered_as_by_the_reference_and_as_alone(mixed: Mixed, dtype: str) -> None:
    """In fp32 too, where no tolerance hides another's adapters."""
    stack, rng = mixed.stack(dtype), random.Random(SEED)
    assert stack.precision.dtype == dtype
    of_reference, of_alone = (RowErrors(SEED, tolerance, 2 * tolerance) for tolerance in (EXACT[dtype], ALIKE[dtype]))
    for _ in range(BATCHES):
        keys = [*mixed.artifacts, *rng.choices(list(mixed.artifacts), k=rng.randint(0, 18))]
        rng.shuffle(keys)
        assert {mixed.kinds[key] for key in keys} == {ROUNDED, PLAIN, UNTUNED}
        rows = random_rows(mixed.root, [rng.choice([1, 2, 5, 9, 32]) for _ in keys])
        for key, row, logits in zip(keys, rows, mixed.answers(stack, keys, rows), strict=True):
            of_reference.add(logits, reference_logits(mixed.root, mixed.artifacts[key], row.float()))
            of_alone.add(logits, mixed.answers(stack, [key], [row])[0])
    of_reference.require(MEDIAN[dtype])
    of_alone.require()
