"""An hPLM's students while they are tuned: what they answer, where they start, and what they learn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adapter_reference import KINDS, random_adapters
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.adapters.parts import Bottleneck, Lora
from backends.adapters.pooling import POOLED_STATES
from backends.adapters.recipe import AdapterRecipe
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.student_set import StudentWeights
from backends.root.student_shape import CHAINED, StudentShape
from backends.root.upper import UpperLayers
from builder.construct.hplm.padded_pooling import POOL_FUNCTIONS
from builder.construct.hplm.state_rows import StateRows
from builder.construct.hplm.teacher_data import TeacherData, TeacherStates
from builder.construct.hplm.tunable import EncodedSet, Tuned, new_head
from builder.construct.students.start import start_of
from builder.construct.students.tunable import StudentLayers, TunableStudents, TunedStudents
from builder.construct.students.tune import PrefixTrainer, StudentTask, answers_of, best_count, tune_students
from builder.construct.tasks.dataset import CLASSIFICATION, REGRESSION, TaskData
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.settings.hplm import TuneSettings
from padded_rows import padded_rows
from seeds import SEED

ROOT = RootGeometry(50, 16, 32, 2, 1, 4, 32, 2, 1e-12, "gelu")
SHAPE = StudentShape(3, 2, 16)
NARROW = StudentShape(3, 2, 8)
CHAIN = StudentShape(3, 2, 16, CHAINED)
NARROW_CHAIN = StudentShape(3, 2, 8, CHAINED)
SHAPES = {"full width": SHAPE, "narrow": NARROW, "chain": CHAIN, "narrow chain": NARROW_CHAIN}
CPU = torch.device("cpu")
LABELS = 3
WIDE = (torch.ones(6, 3, 16), torch.ones(6, 3), torch.ones(6, 16, 3), torch.ones(6, 16))
"""A bottleneck of three numbers, for six layers."""
QUICK = TuneSettings(recipe=AdapterRecipe(width=4), epochs=2, rows_per_batch=8)


@pytest.fixture(autouse=True)
def fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.construct.training.device.cpu_multiplies_bf16", lambda: False)
    torch.manual_seed(SEED)


def student_layers(shape: StudentShape = SHAPE) -> StudentLayers:
    made = StudentWeights.untrained(shape, ROOT)
    made.layers.requires_grad_(False)
    return StudentLayers(made.layers, made.maps, made.inputs, shape, shape.geometry(ROOT))


def random_heads(pooling: str, outputs: int = LABELS, shape: StudentShape = SHAPE) -> tuple[Head, ...]:
    width = POOLED_STATES[pooling] * shape.width
    return tuple(Head(torch.randn(outputs, width), torch.randn(outputs)) for _ in range(SHAPE.count))


def hplm_of(head: Head, pooling: str = "mean", adapters: AdapterSet | None = None) -> Tuned:
    return Tuned(adapters or AdapterSet(), head, pooling, {}, 0)


def pooled_alone(
    students: StudentLayers, adapters: AdapterSet, pooling: str, row: Tensor, segments: Tensor
) -> list[Tensor]:
    """One text through each student, which is made of its own layers and adapters alone."""
    found, states = [], row
    for student in range(SHAPE.count):
        own = UpperLayers(replace(students.shape, count=1).geometry(ROOT))
        span = students.shape.span(student)
        for layer, index in zip(own.layers, span, strict=True):
            layer.load_state_dict(students.layers.layers[index].state_dict())
        attend = padded_attention(students.geometry.num_heads, segments > 0)
        inputs = dict(students.inputs.named_parameters())
        read = states if students.shape.is_chained else row
        if f"{student}.weight" in inputs:
            read = read @ inputs[f"{student}.weight"].T + inputs[f"{student}.bias"]
        states = own(read, attend, adapters.map(lambda _, one, span=span: one[span.start : span.stop]))  # type: ignore[misc]
        found.append(POOL_FUNCTIONS[pooling](states, segments)[0])
    return found


@pytest.mark.parametrize("pooling", sorted(POOLED_STATES))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("entrance", "all")])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_answers_are_those_of_students_by_themselves(shape: StudentShape, kind: str, pooling: str) -> None:
    students, lengths = student_layers(shape), [5, 3, 8]
    adapters = random_adapters(random.Random(SEED), students.geometry, kind)
    heads = random_heads(pooling, shape=shape)
    model = TunableStudents(students, TunedStudents(adapters, heads), pooling)
    rows, segments = padded_rows(lengths)
    with torch.no_grad():
        answers = model.answers(model.read(rows, segments))
        assert torch.equal(model(rows, segments), answers[-1])
        assert torch.equal(model.answer_each(rows, segments), torch.cat(answers, dim=-1))
        for row, length in enumerate(lengths):
            alone = rows[row : row + 1, :length], segments[row : row + 1, :length]
            logits = [
                head.logits(one)
                for head, one in zip(heads, pooled_alone(students, adapters, pooling, *alone), strict=True)
            ]
            for count, each in enumerate(answers, start=1):
                found = each[row] if pooling != "none" else each[row, :length]
                expected = logits[count - 1] if shape.is_chained else torch.stack(logits[:count]).sum(dim=0)
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean", "none"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_students_start_by_saying_what_they_say_to_the_own_head(shape: StudentShape, pooling: str) -> None:
    students, head = student_layers(shape), new_head(LABELS, 16)
    head.bias.normal_()
    model = TunableStudents(students, start_of(students, QUICK.recipe, hplm_of(head, pooling)), pooling)
    rows, segments = padded_rows([6, 4])
    attend = padded_attention(students.geometry.num_heads, segments > 0)
    with torch.no_grad():
        mapped, states = list[Tensor](), rows
        for student in range(shape.count):
            read = students.inputs.enter(student, states if shape.is_chained else rows)
            states = students.layers(read, attend, span=shape.span(student))
            mapped.append(students.maps[student](states))
        for count, answers in enumerate(model.answers(model.read(rows, segments)), start=1):
            said = mapped[count - 1] if shape.is_chained else torch.stack(mapped[:count]).sum(dim=0)
            pooled = POOL_FUNCTIONS[pooling](said, segments)
            torch.testing.assert_close(answers, head.logits(pooled), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("pooling", "dense"), [("halves", False), ("mean", True)])
@pytest.mark.parametrize("shape", [SHAPE, CHAIN], ids=["parallel", "chain"])
def test_where_sums_are_not_linear_students_start_with_the_own_head(
    shape: StudentShape, pooling: str, dense: bool
) -> None:
    """In parallel only the first one does, and the others say nothing yet; in a chain dense ones read mapped states."""
    students, width = student_layers(shape), POOLED_STATES[pooling] * 16
    more = {"dense_weight": torch.randn(width, width) / 4, "dense_bias": torch.randn(width)} if dense else {}
    head = Head(torch.randn(LABELS, width), torch.randn(LABELS), **more)
    model = TunableStudents(students, start_of(students, QUICK.recipe, hplm_of(head, pooling)), pooling)
    states = model.read(*padded_rows([6, 4]))
    with torch.no_grad():
        each = states.chunk(shape.count, dim=-1)
        for student, answers in enumerate(model.answers(states)):
            reads = each[student if shape.is_chained else 0]
            if shape.is_chained and dense:
                reads = students.maps[student](reads)
            torch.testing.assert_close(answers, head.logits(reads), rtol=1e-4, atol=1e-5)


def test_narrow_students_of_a_dense_head_start_with_what_it_says_of_the_first_one_s_sum() -> None:
    students, more = student_layers(NARROW), (torch.randn(5, 16) / 4, torch.randn(5))
    head = Head(torch.randn(LABELS, 5), torch.randn(LABELS), *more)
    model = TunableStudents(students, start_of(students, QUICK.recipe, hplm_of(head)), "mean")
    states = model.read(*padded_rows([6, 4]))
    with torch.no_grad():
        expected = head.logits(students.maps[0](model.whole(states)[0]))
        for answers in model.answers(states):
            torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-5)


def test_narrow_students_of_pairs_start_near_the_own_head() -> None:
    """What is linear of a pair's features is read as from mapped states; here nothing else counts."""
    students = student_layers(NARROW)
    weight = torch.randn(LABELS, 4, 16)
    weight[:, 1:3] = 0.0  # of absolute differences and agreements
    head = Head(weight.flatten(1), torch.randn(LABELS))
    start = start_of(students, QUICK.recipe, hplm_of(head, "halves"))
    assert all(each.hidden_size == 4 * NARROW.width for each in start.heads)
    model, (rows, segments) = TunableStudents(students, start, "halves"), padded_rows([6, 4], middle=2)
    attend = padded_attention(students.geometry.num_heads, segments > 0)
    with torch.no_grad():
        states = students.layers(students.inputs.enter(0, rows), attend, span=NARROW.span(0))
        expected = head.logits(POOL_FUNCTIONS["halves"](students.maps[0](states), segments))
        for answers in model.answers(model.read(rows, segments)):
            torch.testing.assert_close(answers, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("kind", ["identity", "attention", "output", "double", "lora", "norms"])
def test_a_chain_of_first_layers_starts_with_what_the_own_adapters_change(kind: str, spare: int) -> None:
    students, all_layers = student_layers(CHAIN), replace(ROOT, num_upper_layers=8)
    activation = random.Random(SEED).choice(["relu", "gelu"])
    own = random_adapters(random.Random(SEED), all_layers, kind)
    own = replace(
        own, bottlenecks={site: replace(each, activation=activation) for site, each in own.bottlenecks.items()}
    )
    recipe = replace(AdapterRecipe.of(own), activation=activation)
    recipe = replace(recipe, width=recipe.width + spare, rank=recipe.rank + spare)
    start = start_of(students, recipe, hplm_of(new_head(LABELS, 16), adapters=own))
    rows, segments = padded_rows([6, 4])
    attend = padded_attention(students.geometry.num_heads, segments > 0)
    first = own.map(lambda _, tensor: tensor[: students.geometry.num_upper_layers])
    with torch.no_grad():
        found, expected = (students.layers(rows, attend, adapters) for adapters in (start.adapters, first))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    trained = TunableStudents(students, start, "mean").trained()
    assert all(one.requires_grad and one.is_leaf for one in trained.values())


NO_ROOM = {
    "an entrance": ("entrance", {"entrance_width": 0}),
    "another order": ("seq_bn", {}),
    "another activation": ("attention", {"activation": "silu"}),
    "too narrow": ("attention", {"width": 2}),
    "too low": ("lora", {"rank": 2}),
    "a part less": ("norms", {"norm_sites": ("attention",)}),
}


@pytest.mark.parametrize(("kind", "changes"), NO_ROOM.values(), ids=NO_ROOM)
def test_own_adapters_that_the_recipe_has_no_room_for_are_no_start(kind: str, changes: dict[str, Any]) -> None:
    students = student_layers(CHAIN)
    own = random_adapters(random.Random(SEED), students.geometry, kind)
    own = replace(
        own,
        bottlenecks={site: Bottleneck(*WIDE, norm_first=each.norm_first) for site, each in own.bottlenecks.items()},
        loras={module: Lora(WIDE[0], WIDE[2]) for module in ("query",) if own.loras},
    )
    recipe = replace(AdapterRecipe.of(own), **changes)
    assert changes_nothing(students, start_of(students, recipe, hplm_of(new_head(LABELS, 16), adapters=own)))


@pytest.mark.parametrize("shape", [SHAPE, NARROW, NARROW_CHAIN], ids=["parallel", "narrow", "narrow chain"])
def test_students_with_layers_of_their_own_start_with_adapters_that_change_nothing(shape: StudentShape) -> None:
    own = random_adapters(random.Random(SEED), student_layers(CHAIN).geometry, "norms")
    recipe, students = AdapterRecipe.of(own), student_layers(shape)
    assert changes_nothing(students, start_of(students, recipe, hplm_of(new_head(LABELS, 16), adapters=own)))


def changes_nothing(students: StudentLayers, start: TunedStudents) -> bool:
    rows, segments = torch.randn(2, 6, students.shape.width), torch.ones(2, 6, dtype=torch.int)
    attend = padded_attention(students.geometry.num_heads, segments > 0)
    with torch.no_grad():
        return torch.equal(students.layers(rows, attend, start.adapters), students.layers(rows, attend))


@pytest.mark.parametrize("shape", [SHAPE, CHAIN], ids=["parallel", "chain"])
def test_heads_hold_the_scale_of_a_regression_once(shape: StudentShape) -> None:
    students, scale = student_layers(shape), (700.0, 120.0)
    start = TunedStudents(QUICK.recipe.identity(students.geometry, students.layers), random_heads("mean", 1))
    model = TunableStudents(students, start, "mean", scale)
    adapters, heads = model.tuned({name: one.detach() for name, one in model.trained().items()})
    for head, before in zip(heads, start.heads, strict=True):
        torch.testing.assert_close(head.weight, before.weight, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(head.bias, before.bias, rtol=1e-4, atol=1e-3)
    plain = TunableStudents(students, TunedStudents(adapters, heads), "mean")
    rows, segments = padded_rows([6, 4])
    with torch.no_grad():
        torch.testing.assert_close(
            plain.answer_each(rows, segments), model.answer_each(rows, segments), rtol=1e-3, atol=1e-2
        )


def encoded(objective: Objective[Any], examples: Sequence[LabelledText]) -> EncodedSet:
    lengths = np.random.default_rng(SEED).integers(3, 12, len(examples))
    rows = [torch.randn(length, 16).half() for length in lengths]
    return EncodedSet(rows, objective.targets(examples, [None] * len(rows)), lengths, [None] * len(rows))


def task_of(kind: str, count: int = 24, shape: StudentShape = SHAPE) -> StudentTask:
    labels = ["a", "b", "c"] if kind == CLASSIFICATION else [100.0, 300.0, 500.0]
    examples = [LabelledText(f"text {number}", labels[number % 3]) for number in range(count)]
    data = TaskData(kind, ("a", "b", "c") if kind == CLASSIFICATION else (), examples, examples)
    objective: Objective[Any] = objective_of(data)
    head = new_head(objective.num_outputs, 16)
    answers = [torch.randn(1, objective.num_outputs) * objective.scale[1] + objective.scale[0] for _ in examples]
    read = torch.randn(len(examples), 16).half().numpy()
    states = TeacherStates(head, StateRows(read, np.arange(len(read) + 1), np.ones(len(read), np.int64)), "mean")
    taught = TeacherData(examples, answers, states)
    train = encoded(objective, examples)
    return StudentTask(student_layers(shape), objective, hplm_of(head), train, taught, train)


@pytest.mark.parametrize("kind", [CLASSIFICATION, REGRESSION])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_loss_counts_every_number_of_students_and_the_first_twice(shape: StudentShape, kind: str) -> None:
    task = task_of(kind, shape=shape)
    start = start_of(task.students, QUICK.recipe, task.hplm)
    model = TunableStudents(task.students, start, "mean", task.objective.scale)
    indices = np.arange(7)
    found = PrefixTrainer(model, task, lambda _: {}, QUICK)._loss(indices, 1)
    states = model.read(*task.train.padded(indices, CPU))
    soft = torch.cat([task.taught.answers[index] for index in indices])
    losses = [task.objective.soft_loss(each, soft, 1.0) for each in model.answers(states)]
    expected = 2 * losses[0] + losses[1] + losses[2]
    if kind == CLASSIFICATION:
        assert task.taught.states is not None
        for student in range(shape.count if shape.is_chained else 1):
            own, part = task.students.maps[student], slice(student * shape.width, (student + 1) * shape.width)
            says = states[:, part] @ own.weight.T + own.bias
            expected = expected + task.taught.states.distance(says, indices)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    found.backward()
    assert all(one.grad is not None for one in model.trained().values())
    frozen = task.students.layers, task.students.maps, task.students.inputs
    assert all(one.grad is None for part in frozen for one in part.parameters())


def test_what_is_measured_is_what_is_stored() -> None:
    task = task_of(CLASSIFICATION)
    tuned = tune_students(task, QUICK, lambda _: None)
    assert {one.dtype for one in tuned.adapters.named().values()} == {torch.bfloat16}
    assert {one.dtype for head in tuned.heads for one in head.named().values()} == {torch.float16}
    each = answers_of(task, tuned, task.dev)
    assert len(each) == SHAPE.count and all(len(answers) == 24 for answers in each)
    accuracies = [task.objective.metrics(answers, task.dev.targets)["accuracy"] for answers in each]
    assert tuned.metrics["accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))


@pytest.mark.parametrize(("scores", "best"), [([0.9], 1), ([0.8, 0.9, 0.9], 2), ([0.9, 0.9], 1), ([0.7, 0.8, 0.9], 3)])
def test_of_equally_good_numbers_the_least_is_best(scores: list[float], best: int) -> None:
    assert best_count(scores) == best
