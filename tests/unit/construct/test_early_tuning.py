"""Early tuning: what it learns from, where it begins, and what comes of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adapter_reference import random_adapters
from backends.adapters.head import Head
from backends.adapters.pooling import POOLED_STATES
from backends.adapters.recipe import AdapterRecipe
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers
from bench.kit.tiny_home import ignore
from builder.construct.hplm import early_tuning
from builder.construct.hplm.early_tuning import EarlyHplm, EarlyTask, early_settings, tune_early
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.hplm.tunable import EncodedSet, Tuned
from builder.construct.hplm.tune import Upper, evaluate, tune
from builder.construct.tasks.dataset import CLASSIFICATION, REGRESSION, TaskData
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.training.checkpoint import Checkpoint
from builder.progress import Step
from builder.settings.hplm import TuneSettings
from padded_rows import padded_rows

SEED = 7
"""A fixed one, since some tests compare what is learned."""
GEOMETRY = RootGeometry(50, 16, 32, 2, 1, 3, 32, 2, 1e-12, "gelu")
LAYERS = GEOMETRY.num_upper_layers
LABELS = ("a", "b", "c")
CPU = torch.device("cpu")
COUNT = 80
"""Just enough texts to fit maps of 16 numbers on."""
QUICK = TuneSettings(recipe=AdapterRecipe(width=4), epochs=6, rows_per_batch=8, learning_rate=1e-2)


class Interrupted(Exception):  # noqa: N818 - not an error of ours
    pass


@pytest.fixture(autouse=True)
def fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.construct.training.device.cpu_multiplies_bf16", lambda: False)
    torch.manual_seed(SEED)


@pytest.fixture
def upper() -> Upper:
    layers = UpperLayers(GEOMETRY)
    with torch.no_grad():
        for one in layers.parameters():
            if one.dim() > 1:
                one.mul_(4)  # or what comes out were nearly linear in what goes in
    return Upper(layers, GEOMETRY)


def set_of(kind: str, seed: int, count: int = COUNT) -> tuple[Objective[Any], EncodedSet]:
    """Rows that lean in a direction of their label's own."""
    rng = np.random.default_rng(seed)
    directions = torch.randn(3, 16, generator=torch.Generator().manual_seed(SEED))
    lengths, numbers = rng.integers(3, 12, count), rng.integers(0, 3, count)
    labels = [LABELS[number] if kind == CLASSIFICATION else 100.0 * number for number in numbers]
    examples = [LabelledText(f"text {number}", label) for number, label in enumerate(labels)]
    data = TaskData(kind, LABELS if kind == CLASSIFICATION else (), examples, examples)
    objective: Objective[Any] = objective_of(data)
    pairs = zip(lengths.tolist(), numbers.tolist(), strict=True)
    rows = [(torch.randn(length, 16) + directions[number]).half() for length, number in pairs]
    return objective, EncodedSet(rows, objective.targets(examples, [None] * count), lengths, [None] * count)


@pytest.fixture(params=[CLASSIFICATION, REGRESSION])
def task(request: pytest.FixtureRequest, upper: Upper, tmp_path: Path) -> EarlyTask:
    objective, train = set_of(request.param, 1)
    _, dev = set_of(request.param, 2)
    own = tune(upper, objective, train, dev, QUICK, ignore)
    return EarlyTask(upper, objective, own, train, dev, tmp_path / "reading")


def states_after(upper: Upper, own: Tuned, row: Tensor, segments: Tensor) -> list[Tensor]:
    """One text through the layers, one after the other: what a head reads after each."""
    attend, found = padded_attention(GEOMETRY.num_heads, segments > 0), []
    for layer in range(LAYERS):
        row = upper.layers(row, attend, own.adapters, range(layer, layer + 1))
        found.append(POOL_FUNCTIONS[own.pooling](row, segments)[0])
    return found


@pytest.mark.parametrize("pooling", sorted(POOLED_STATES))
def test_each_layer_has_answers_of_its_own(upper: Upper, pooling: str) -> None:
    width = POOLED_STATES[pooling] * 16
    heads = [Head(torch.randn(3, width), torch.randn(3)) for _ in range(LAYERS)]
    own = Tuned(random_adapters(random.Random(SEED), GEOMETRY, "lora"), heads[-1], pooling, {}, 0)
    model = EarlyHplm(upper.model(own), heads[:-1], CPU)
    lengths = [5, 3, 8]
    rows, segments = padded_rows(lengths, middle=2)
    with torch.no_grad():
        answers = model.answers(model.read(rows, segments))
        assert torch.equal(model(rows, segments), torch.cat(answers, dim=-1))
        assert torch.equal(model.answer(model.read(rows, segments)), answers[-1])
        for row, length in enumerate(lengths):
            alone = states_after(upper, own, rows[row : row + 1, :length], segments[row : row + 1, :length])
            for head, states, found in zip(heads, alone, answers, strict=True):
                each = found[row] if pooling != "none" else found[row, :length]
                torch.testing.assert_close(each, head.logits(states), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pooling", sorted(POOLED_STATES))
def test_all_layers_compute_in_the_precision_of_the_last(upper: Upper, pooling: str) -> None:
    width = POOLED_STATES[pooling] * 16
    adapters = random_adapters(random.Random(SEED), GEOMETRY, "lora")
    model = upper.model(Tuned(adapters, Head(torch.randn(3, width), torch.randn(3)), pooling, {}, 0))
    rows, segments = padded_rows([5, 3, 8], middle=2)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        last = model.read_each(rows, segments).chunk(LAYERS, dim=-1)[-1]
        assert torch.equal(last, model.read(rows, segments))
    assert not torch.equal(last, model.read(rows, segments))


def test_early_heads_begin_as_the_own_head_behind_the_nearest_maps(task: EarlyTask) -> None:
    maps = early_tuning._fitted_maps(task, ignore)
    model = early_tuning._starting(task, maps, 0.0)
    with torch.no_grad():
        states = model.read(*task.train.padded(np.arange(len(task.train.targets)), CPU))
        *early, last = states.chunk(LAYERS, dim=-1)
        for own, each, found in zip(maps, early, model.answers(states), strict=False):
            expected = task.own.head.to(torch.float32).logits(own(each))
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
            ones = np.hstack([each.double().numpy(), np.ones((len(each), 1))])
            nearest = ones @ np.linalg.lstsq(ones, last.double().numpy(), rcond=None)[0]
            least = float(np.square(last.numpy() - nearest).mean())
            assert float((last - own(each)).square().mean()) < 1.1 * least


def test_the_loss_counts_the_answers_and_states_of_every_layer(task: EarlyTask) -> None:
    maps, taught = early_tuning._fitted_maps(task, ignore), early_tuning._own_states(task, ignore)
    model = early_tuning._starting(task, maps, 0.0)
    trainer = early_tuning._EarlyTrainer(model, task, lambda _: {}, early_settings(QUICK), taught, maps)
    indices = np.arange(7)
    found = trainer._loss(indices, 1)
    states = model.read(*task.train.padded(indices, CPU))
    soft = torch.cat([taught.answers(0.0, 1.0)[index] for index in indices])
    expected = torch.stack([task.objective.soft_loss(each, soft, 1.0) for each in model.answers(states)]).sum()
    if task.objective.learns_states:
        for own, each in zip([*maps, torch.nn.Identity()], states.chunk(LAYERS, dim=-1), strict=True):
            expected = expected + taught.distance(own(each), indices)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    found.backward()
    assert all(one.grad is not None for one in model.trained().values())
    frozen = [*task.upper.layers.parameters(), *(one for own in maps for one in own.parameters())]
    assert all(one.grad is None for one in frozen)


def test_lower_layers_say_more_of_the_own_answers_afterwards(task: EarlyTask) -> None:
    settings = replace(early_settings(QUICK), epochs=20, rows_per_batch=8, learning_rate=1e-2)
    tuned = tune_early(task, settings, ignore)
    assert tuned.pooling == task.own.pooling and tuned.epoch >= 1
    assert {one.dtype for one in tuned.adapters.named().values()} == {torch.bfloat16}
    assert evaluate(task.upper, task.objective, tuned, task.dev) == tuned.metrics
    assert left_unsaid(task, tuned) < 0.95 * left_unsaid(task, task.own)


def left_unsaid(task: EarlyTask, tuned: Tuned) -> float:
    """Return the share of the own answers' variance that no linear head after the first layer says."""
    inputs = task.train.padded(np.arange(len(task.train.targets)), CPU)
    own, model = task.upper.model(task.own), task.upper.model(tuned)
    with torch.no_grad():
        answers = own.answer(own.read(*inputs)).double().numpy()
        first = model.read_each(*inputs).chunk(LAYERS, dim=-1)[0].double().numpy()
    ones = np.hstack([first, np.ones((len(first), 1))])
    said = ones @ np.linalg.lstsq(ones, answers, rcond=None)[0]
    return float(np.square(answers - said).sum() / np.square(answers - answers.mean(axis=0)).sum())


def test_pairs_have_no_maps_and_begin_with_the_own_head(task: EarlyTask) -> None:
    width = POOLED_STATES["halves"] * 16
    own = replace(task.own, head=Head(torch.randn(3, width), torch.randn(3)), pooling="halves")
    maps = early_tuning._fitted_maps(replace(task, own=own), ignore)
    model = early_tuning._starting(replace(task, own=own, objective=set_of(CLASSIFICATION, 1)[0]), maps, 0.0)
    assert maps == []
    with torch.no_grad():
        states = model.read(*padded_rows([6, 4], middle=2))
        for each, found in zip(states.chunk(LAYERS, dim=-1), model.answers(states), strict=True):
            torch.testing.assert_close(found, own.head.logits(each), rtol=1e-4, atol=1e-5)


def test_few_texts_have_no_maps(task: EarlyTask) -> None:
    few = replace(task, train=set_of(CLASSIFICATION, 1, COUNT - 1)[1])
    assert len(early_tuning._fitted_maps(task, ignore)) == LAYERS - 1
    assert early_tuning._fitted_maps(few, ignore) == []


def test_an_interrupted_early_tuning_ends_the_same(task: EarlyTask, tmp_path: Path) -> None:
    settings = replace(early_settings(QUICK), rows_per_batch=8)
    expected = tune_early(task, settings, ignore)
    checkpoint = Checkpoint(tmp_path / "early", "inputs")

    def interrupt(step: Step) -> None:
        if step.phase.startswith("tune") and step.done == 13:
            raise Interrupted

    with pytest.raises(Interrupted):
        tune_early(task, settings, interrupt, checkpoint)
    seen: list[Step] = []
    found = tune_early(task, settings, seen.append, checkpoint)
    assert next(step.done for step in seen if step.phase.startswith("tune")) == 11  # after an epoch of ten steps
    assert torch.equal(found.head.weight, expected.head.weight)
    assert all(torch.equal(one, expected.adapters.named()[name]) for name, one in found.adapters.named().items())
