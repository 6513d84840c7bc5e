"""Students in the making: what they say of a batch, how far that is from the upper layers, and which of them learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.student_shape import CHAINED, PARALLEL, StudentShape, Wiring
from backends.root.upper import UpperLayers
from builder.construct.hplm.state_rows import StateRows
from builder.construct.students.hidden_texts import HiddenBatch, HiddenTexts, numbered_token_batches, token_batches
from builder.construct.students.learning import LearningStudents
from seeds import SEED

GEOMETRY = RootGeometry(50, 16, 32, 2, 1, 4, 32, 2, 1e-12, "gelu")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow references compute in fp32 too."""
    monkeypatch.setattr("builder.construct.training.device.cpu_multiplies_bf16", lambda: False)


def hidden_texts(count: int = 12) -> HiddenTexts:
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(2, 20, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    hidden = rng.normal(size=(offsets[-1], 16)).astype(np.float16)
    return HiddenTexts(StateRows(hidden, offsets, lengths), CPU)


def learning(count: int = 3, layers: int = 2, width: int = 16, wiring: Wiring = PARALLEL) -> LearningStudents:
    torch.manual_seed(SEED)
    made = LearningStudents(UpperLayers(GEOMETRY), GEOMETRY, StudentShape(count, layers, width, wiring))
    for student in range(count):
        made.start(student)
    return made


def shaken(made: LearningStudents) -> LearningStudents:
    """Students that say something, each something else."""
    with torch.no_grad():
        for weights in [*made.layers.parameters(), *made.maps.parameters(), *made.inputs.parameters()]:
            weights.add_(torch.randn(weights.shape) / 20)
    return made


def alone(made: LearningStudents, batch: HiddenBatch, row: int) -> tuple[Tensor, list[list[Tensor]]]:
    """One text by itself: the upper layers' states, and those after each layer of each student."""
    length = int(batch.mask[row].sum())
    mask, hidden = torch.ones(1, length, dtype=torch.bool), batch.hidden[row : row + 1, :length]
    target = hidden
    for layer in made._upper.layers:
        target = layer(target, padded_attention(2, mask))
    students, states, attend = [], hidden, padded_attention(made.shape.width // 8, mask)
    for student in range(made.shape.count):
        reads = states if made.shape.wiring == CHAINED and student else hidden
        states, found = entered(made, student, reads), []
        for index in made.shape.span(student):
            states = made.layers.layers[index](states, attend)
            found.append(states[0])
        students.append(found)
    return target[0], students


def entered(made: LearningStudents, student: int, hidden: Tensor) -> Tensor:
    if hidden.shape[-1] == made.shape.width:
        return hidden
    return hidden @ made.inputs[student].weight.T + made.inputs[student].bias


def reference_loss(made: LearningStudents, batch: HiddenBatch, student: int, stacking: float) -> Tensor:
    """Loop over texts: mean squares over all tokens in units of the variance over all tokens."""
    targets, befores, says, middles = [], [], [], []
    for row in range(len(batch.hidden)):
        target, students = alone(made, batch, row)
        mapped = [states[-1] @ made.maps[k].weight.T + made.maps[k].bias for k, states in enumerate(students)]
        targets.append(target)
        befores.append(sum(mapped[:student], torch.zeros_like(target)))
        says.append(mapped[student])
        middles.append(students[student][(made.shape.layers + 1) // 2 - 1])
    target, before, say, middle = (torch.cat(each) for each in (targets, befores, says, middles))
    loss = ((target - before - say) ** 2).mean() / target.var()
    if student and made.shape.layers > 1:
        below = entered(made, student, before).detach()
        loss = loss + stacking * ((below - middle) ** 2).mean() / below.var()
    return loss


@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_boosting_losses_are_those_of_a_slow_reference(layers: int, width: int) -> None:
    made, batch = shaken(learning(layers=layers, width=width)), hidden_texts().batch(np.arange(5))
    for student in range(made.shape.count):
        for stacking in (0.0, 0.7):
            expected = reference_loss(made, batch, student, stacking)
            torch.testing.assert_close(made.boosting_loss(batch, student, stacking), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wiring", [PARALLEL, CHAINED])
@pytest.mark.parametrize("width", [16, 8])
def test_joint_gradients_are_those_of_all_prefixes_added_up(width: int, wiring: Wiring) -> None:
    made, batch = shaken(learning(width=width, wiring=wiring)), hidden_texts().batch(np.arange(5))
    learns = made.parameters_of(range(3))
    made.joint_loss(batch, 3).backward()
    together = {name: one.grad.clone() for name, one in learns.items() if one.grad is not None}
    for one in learns.values():
        one.grad = None
    for count in (1, 2, 3):
        rows = [alone(made, batch, row) for row in range(len(batch.hidden))]
        target = torch.cat([one for one, _ in rows]).detach()
        ((torch.cat([said(made, students, count) for _, students in rows]) - target) ** 2).mean().div(
            target.var()
        ).backward()
    assert together.keys() == learns.keys()
    for name, one in learns.items():
        torch.testing.assert_close(together[name], one.grad, rtol=1e-3, atol=1e-5)


def said(made: LearningStudents, students: list[list[Tensor]], count: int) -> Tensor:
    """What the first students say, from the states after each layer of each one."""
    mapped = [made.maps[student](students[student][-1]) for student in range(count)]
    return mapped[-1] if made.shape.wiring == CHAINED else torch.stack(mapped).sum(dim=0)


@pytest.mark.parametrize("width", [16, 8])
def test_a_chain_starts_as_the_first_upper_layers(width: int) -> None:
    """Three students of one layer: the first three of four, of narrow ones some channels."""
    made, step = learning(layers=1, width=width, wiring=CHAINED), 16 // width
    for own, source in zip(made.layers.layers, [*made._upper.layers][:3], strict=True):
        assert torch.equal(own.ffn_out.weight, source.ffn_out.weight[::step, ::step])
    assert len(made.inputs) == (width < 16)


@pytest.mark.parametrize("width", [16, 8])
def test_maps_of_a_chain_say_what_comes_nearest_to_the_upper_layers(width: int) -> None:
    made, texts = shaken(learning(width=width, wiring=CHAINED)), hidden_texts(40)
    done: list[int] = []
    made.fit_maps(texts, 30, done.append)
    assert done[-1] == 30
    batch = texts.batch(np.arange(30))
    rows = [alone(made, batch, row) for row in range(30)]
    target = torch.cat([one for one, _ in rows])
    for student, own in enumerate(made.maps):
        states = torch.cat([students[student][-1] for _, students in rows])
        best = torch.linalg.lstsq(torch.cat([states, torch.ones(len(states), 1)], dim=1), target).solution
        torch.testing.assert_close(own(states), states @ best[:-1] + best[-1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("wiring", [PARALLEL, CHAINED])
def test_narrow_students_of_more_layers_than_there_are_upper_ones_begin_as_all_of_these(wiring: Wiring) -> None:
    made = learning(count=1, layers=6, width=8, wiring=wiring)
    begins = [[*made._upper.layers][index].ffn_out.weight[::2, ::2] for index in (0, 0, 1, 2, 2, 3)]
    assert all(torch.equal(own.ffn_out.weight, each) for own, each in zip(made.layers.layers, begins, strict=True))


@pytest.mark.parametrize("width", [16, 8])
def test_a_new_student_changes_nothing_yet(width: int) -> None:
    texts = hidden_texts()
    made = learning(width=width)
    first, *others = made.fidelity(texts, 3)
    assert others == [first] * 2
    made = shaken(made)
    before = made.fidelity(texts, 2)
    made.start(2)
    *_, last, added = made.fidelity(texts, 3)
    assert last == added == before[-1]


@pytest.mark.parametrize("wiring", [PARALLEL, CHAINED])
def test_fidelity_and_residuals_are_over_tokens(wiring: Wiring) -> None:
    made, texts = shaken(learning(wiring=wiring)), hidden_texts()
    batch = texts.batch(np.arange(len(texts)))
    targets, says = [], []
    for row in range(len(texts)):
        target, students = alone(made, batch, row)
        targets.append(target)
        says.append(said(made, students, 2))
    target, together = torch.cat(targets), torch.cat(says)
    found = made.fidelity(texts, 2)[-1]
    assert found.error == pytest.approx(float(((together - target) ** 2).mean() / target.var(correction=0)), rel=1e-4)
    assert found.cosine == pytest.approx(float(functional.cosine_similarity(together, target, dim=-1).mean()), rel=1e-4)
    expected = [float(((one - other) ** 2).mean()) for one, other in zip(says, targets, strict=True)]
    np.testing.assert_allclose(made.residuals(texts, 2), expected, rtol=1e-4)


def test_a_narrow_student_starts_with_some_channels_of_the_last_upper_layers() -> None:
    """Its map takes every other channel of the rows; the first half of the heads is the only one that is left."""
    made, hidden = learning(count=2, width=8), torch.randn(3, 16, generator=torch.Generator().manual_seed(SEED))
    source, own = made._upper.layers[-1], made.layers.layers[1]
    torch.testing.assert_close(made.inputs.enter(0, hidden), hidden[:, ::2])
    assert torch.equal(own.query_key_value.weight[8:16], source.query_key_value.weight[16:24, ::2])
    assert torch.equal(own.ffn_out.weight, source.ffn_out.weight[::2, ::2])
    assert torch.equal(own.ffn_norm.bias, source.ffn_norm.bias[::2])
    torch.testing.assert_close(made.maps[0](hidden[:, ::2])[:, ::2], hidden[:, ::2])
    assert not made.maps[0](hidden[:, ::2])[:, 1::2].any()
    assert torch.equal(made.inputs[0].weight, made.inputs[1].weight)


@pytest.mark.parametrize("width", [16, 8])
def test_only_named_students_learn(width: int) -> None:
    made = learning(width=width)
    learns = made.parameters_of([1])
    assert {name for name in learns if name.startswith("inputs")} == (
        {"inputs.1.weight", "inputs.1.bias"} if width < 16 else set()
    )
    assert {name.split(".")[1] for name in learns if name.startswith("layers")} == {"2", "3"}
    assert {name for name in learns if name.startswith("maps")} == {"maps.1.weight", "maps.1.bias"}
    made.boosting_loss(hidden_texts().batch(np.arange(4)), 1, 1.0).backward()
    assert {id(one) for one in made.parameters() if one.grad is not None} == {id(one) for one in learns.values()}


@pytest.mark.parametrize("wiring", [PARALLEL, CHAINED])
@pytest.mark.parametrize("width", [16, 8])
def test_kept_students_are_the_first(width: int, wiring: Wiring) -> None:
    made = shaken(learning(width=width, wiring=wiring))
    shape, kept = made.kept(2)
    mapped = {PARALLEL: [2, 3], CHAINED: [1, 1]}[wiring] if width < 16 else [0, 0]
    assert [len(kept.inputs), len(made.inputs)] == mapped
    assert shape == StudentShape(2, 2, width, wiring) and len(kept.maps) == 2 and len(kept.layers.layers) == 4
    for index in range(4):
        assert torch.equal(kept.layers.layers[index].ffn_in.weight, made.layers.layers[index].ffn_in.weight)
    assert len(made.maps) == 3


def test_batches_hold_all_texts_and_no_more_tokens_than_they_may() -> None:
    lengths = np.random.default_rng(SEED).integers(1, 40, 100)
    batches = token_batches(lengths, np.arange(100), 128)
    assert sorted(np.concatenate(batches).tolist()) == list(range(100))
    assert all(len(batch) * (-(-max(lengths[batch]) // 8) * 8) <= 128 for batch in batches)


def test_batches_depend_on_their_step_only() -> None:
    lengths = np.random.default_rng(SEED).integers(1, 40, 60)
    groups = [(0.5, np.arange(60)), (0.5, np.arange(10))]
    whole = [*numbered_token_batches(lengths, groups, 128, 7, 0, 30)]
    rest = [*numbered_token_batches(lengths, groups, 128, 7, 12, 30)]
    assert len(whole) == 30 and len(rest) == 18
    for one, other in zip(whole[12:], rest, strict=True):
        np.testing.assert_array_equal(one, other)
    drawn = np.concatenate(whole)
    assert (drawn < 10).mean() > 0.3  # 10 of 60 in the mean, were all texts alike
