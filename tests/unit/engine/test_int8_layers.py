"""Layers in int8: against the same layers in fp32, alone and with adapters, and through slots that change hands."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapter_reference import KINDS, random_artifact
from backends.adapters.bank import HplmArtifact
from backends.engine import precision
from backends.engine.layers import served_layers
from backends.engine.precision import Precision, fastest_dtype, precision_of
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root import int8_linear
from backends.root.encoder import ACTIVATION_FUNCTIONS
from backends.root.geometry import ACTIVATIONS, RootGeometry
from backends.root.int8_file import QUANTISATION_FORMAT_VERSION, SMOOTHED, Quantisation
from backends.root.int8_instructions import int8_instructions
from backends.root.int8_linear import AFTER, CENTRED, QuantisedLinear, Range, quantised_weight
from backends.root.store import RootFolder
from backends.storage import read_json, write_json
from bench.kit.marks import Mark
from bench.kit.rounded_upper import dequantised
from layer_cases import LayerCases, relative_error

pytestmark = pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")

CPU = torch.device("cpu")
STATES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HAS_VNNI = int8_instructions() == "VNNI"
"""Without it weights have three quarters as many levels."""
RELATIVE_ERROR_OF_LINEAR = 0.02 if HAS_VNNI else 0.04
RELATIVE_ERROR_OF_LAYERS = 0.05 if HAS_VNNI else 0.08
"""Two layers of random weights, adapters included: 0.02 at the median and 0.04 at most, of thousands of batches."""
GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 2, 32, 2, 1e-12, "gelu")


def random_linear(inputs: Range = CENTRED, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, QuantisedLinear]:
    linear = nn.Linear(48, 64).requires_grad_(False)
    linear.weight.mul_(torch.logspace(-2, 2, 64)[:, None])  # each output has its own scale
    return linear, QuantisedLinear(linear.weight, linear.bias, dtype, inputs)


def scaled_tokens(num_tokens: int) -> Tensor:
    """Each has its own size."""
    return torch.randn(num_tokens, 48) * torch.logspace(-3, 3, num_tokens)[:, None]


@pytest.mark.parametrize("dtype", list(STATES))
def test_a_product_has_the_scale_of_each_token_and_of_each_output(dtype: str) -> None:
    torch.manual_seed(1)
    linear, in_int8 = random_linear(dtype=STATES[dtype])
    states = scaled_tokens(96).to(STATES[dtype])
    plus = torch.randn(96, 64).to(STATES[dtype])
    expected, got = linear(states.float()), in_int8(states)
    for token in range(len(states)):
        assert relative_error(got[token], expected[token]) < RELATIVE_ERROR_OF_LINEAR
    for output in range(64):
        assert relative_error(got[:, output], expected[:, output]) < RELATIVE_ERROR_OF_LINEAR
    torch.testing.assert_close(in_int8(states, plus), got + plus, rtol=0.02, atol=1e-2)


def test_the_largest_sums_are_exact() -> None:
    """Without VNNI two products are added in 16 bits, which would cut them off; only neighbours may need room."""
    for weights in ([1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0], [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]):
        weight = torch.tensor(weights).repeat(64, 12)
        in_int8 = QuantisedLinear(weight, torch.zeros(64), torch.float32, Range(0.0))
        torch.testing.assert_close(in_int8(torch.ones(32, 48)), weight.sum(dim=1).expand(32, 64), rtol=1e-2, atol=0)


def test_weights_without_vnni_leave_room_for_two_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products with inputs of 255 fit into 16 bits, if the sum of both weights is 128 at most."""
    torch.manual_seed(6)
    monkeypatch.setattr(int8_linear, "int8_instructions", lambda: "AVX2")
    for weight in (torch.randn(64, 47), torch.rand(64, 48), -torch.rand(64, 48), torch.ones(64, 48)):
        values, scales = quantised_weight(weight)
        pairs = functional.pad(values.int(), (0, values.shape[1] % 2)).unflatten(1, (-1, 2))
        positive, negative = pairs.clamp_min(0).sum(dim=-1), pairs.clamp_max(0).sum(dim=-1)
        assert positive.max() <= 128 and negative.min() >= -128
        assert torch.maximum(positive, -negative).amax(dim=1).min() >= 126
        torch.testing.assert_close(values * scales[:, None], weight, rtol=0, atol=float(scales.max()) * 0.51)


@pytest.mark.parametrize("smoothing", [None, torch.linspace(0.5, 2.0, 48)])
@pytest.mark.parametrize("outputs", [1, 256, 600])
def test_each_output_of_a_weight_is_quantised_alone(outputs: int, smoothing: Tensor | None) -> None:
    torch.manual_seed(8)
    weight = nn.Parameter(torch.randn(outputs, 48) * torch.logspace(-2, 2, outputs)[:, None])
    values, scales = quantised_weight(weight, smoothing)
    assert (values.dtype, values.requires_grad) == (torch.int8, False)
    smoothed = weight.detach() * (1.0 if smoothing is None else smoothing)
    for output in range(outputs):
        levels = torch.tensor([round(float(one)) for one in smoothed[output] / scales[output]])
        assert torch.equal(values[output].long(), levels)
        assert levels.abs().max() == 127 or not HAS_VNNI


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_errors_of_a_token_s_states_cancel_out(activation: str) -> None:
    """A shift of all states, however small, would meet the sum of an output's weights."""
    torch.manual_seed(5)
    inputs = AFTER[activation]
    lowest = inputs.lowest or 0.0
    states = lowest + torch.rand(200, 3072) * torch.linspace(1, 9, 200)[:, None]
    quantised = inputs.quantised(states)
    errors = (dequantised(inputs, quantised) - states) / quantised.scales[:, None]
    assert errors.abs().max() <= 0.51
    assert errors.mean(dim=1).abs().max() < 0.03  # of levels, six times the deviation of such a mean


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_an_activation_returns_uses_the_whole_range(activation: str) -> None:
    torch.manual_seed(2)
    activate = ACTIVATION_FUNCTIONS[activation]
    everywhere = torch.linspace(-10, 10, 100_001)
    for dtype in STATES.values():
        assert float(activate(everywhere.to(dtype)).min()) >= AFTER[activation].lowest  # type: ignore[operator]
    states = activate(torch.randn(64, 48))
    linear, one_sided = random_linear(AFTER[activation])
    centred = QuantisedLinear(linear.weight, linear.bias, torch.float32)
    expected = linear(states)
    error = relative_error(one_sided(states), expected)
    assert error < RELATIVE_ERROR_OF_LINEAR
    assert error < relative_error(centred(states), expected)


@pytest.mark.parametrize("inputs", [CENTRED, *AFTER.values()])
@pytest.mark.parametrize("block_tokens", [32, 256])
def test_a_token_does_not_see_the_tokens_beside_it(
    block_tokens: int, inputs: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even their NaN, infinities, or largest numbers."""
    torch.manual_seed(3)
    monkeypatch.setattr(int8_linear, "BLOCK_TOKENS", block_tokens)
    _, in_int8 = random_linear(inputs)
    states = torch.randn(64, 48) if inputs is CENTRED else torch.rand(64, 48)
    alone = in_int8(states)
    negative = [float("-inf")] if inputs is CENTRED else []  # no activation returns it
    for number in (float("nan"), float("inf"), *negative, 3e38):
        spoiled = states.clone()
        spoiled[7, 5] = number
        got = in_int8(spoiled)
        others = [token for token in range(64) if token != 7]
        assert torch.equal(got[others], alone[others])
        assert number == 3e38 or not torch.isfinite(got[7]).all()


@pytest.mark.parametrize("inputs", [CENTRED, *AFTER.values()])
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38])
def test_a_token_of_nothing_gives_the_bias(size: float, inputs: Range) -> None:
    linear, in_int8 = random_linear(inputs)
    got = in_int8(torch.full((32, 48), size))
    torch.testing.assert_close(got, linear.bias.expand(32, 64))


@pytest.mark.parametrize("dtype", list(STATES))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("mixed", [True, False])
def test_layers_in_int8_equal_the_plain_ones(dtype: str, activation: str, mixed: bool) -> None:
    """Alone, each kind of adapters decides where residuals are added and which products are blocked together."""
    geometry = replace(GEOMETRY, activation=activation)
    cases = LayerCases(geometry, STATES[dtype])
    layers = served_layers(cases.upper(), activation, Precision(STATES[dtype], "int8"), CPU)
    for name, error in cases.errors(layers, mixed):
        assert error < RELATIVE_ERROR_OF_LAYERS, f"{name}: {error:.4f}"


def test_smoothed_layers_equal_the_plain_ones() -> None:
    cases = LayerCases(GEOMETRY, torch.bfloat16)
    smoothing = {(layer, product): 4 ** (2 * torch.rand(32) - 1) for layer in range(2) for product in SMOOTHED}
    layers = served_layers(cases.upper(), "gelu", Precision(torch.bfloat16, "int8"), CPU, smoothing)
    for name, error in cases.errors(layers, mixed=True):
        assert error < RELATIVE_ERROR_OF_LAYERS, f"{name}: {error:.4f}"


def test_smoothing_makes_up_for_a_large_channel() -> None:
    torch.manual_seed(5)
    linear = nn.Linear(48, 64).requires_grad_(False)
    states = torch.randn(96, 48)
    states[:, 3] *= 60
    linear.weight[:, 3] /= 60
    smoothing = torch.ones(48)
    smoothing[3] = 60.0
    errors = [
        relative_error(
            QuantisedLinear(linear.weight, linear.bias, torch.float32, CENTRED, each)(states), linear(states)
        )
        for each in (None, smoothing)
    ]
    assert errors[1] < RELATIVE_ERROR_OF_LINEAR and errors[0] > 4 * errors[1]


def test_a_stack_takes_its_root_s_smoothing(tiny_home: Home) -> None:
    root = RootFolder(tiny_home.root("tiny"))
    channels = torch.logspace(-1, 1, root.geometry.hidden_size)
    layers = range(root.geometry.num_upper_layers)
    smoothing = {(layer, product): channels for layer in layers for product in SMOOTHED}
    artifact = random_classifier(random.Random(6), root, "identity")
    hidden = torch.randn(20, root.geometry.hidden_size)
    answers = []
    for each in (None, smoothing):
        if each is not None:
            Quantisation(root.fingerprint, each).write(root.path)
        stack = UpperStack(root, StackSettings(dtype="int8", num_slots=2))
        hplms = [stack.ready(1, lambda: artifact)]
        answers += stack.run(stack.pack([hidden], hplms), hplms)
    assert not torch.equal(*answers)
    torch.testing.assert_close(*answers, rtol=0.1, atol=0.2 if HAS_VNNI else 0.4)


def test_a_root_without_a_smoothing_that_fits_is_served_and_the_log_says_so(
    tiny_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    root = RootFolder(tiny_home.root("tiny"))
    path = root.path / "int8.json"

    def complaint() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert UpperStack(root, StackSettings(dtype="int8", num_slots=2)).precision.products == "int8"
        assert "int8 without smoothing" in caplog.text
        return caplog.text

    assert "no export has prepared the root" in complaint()
    Quantisation("another", {}).write(root.path)
    assert "was made for root another" in complaint()
    write_json(path, read_json(path) | {"format_version": QUANTISATION_FORMAT_VERSION + 1})
    assert f"this release reads up to {QUANTISATION_FORMAT_VERSION}" in complaint()
    path.unlink()
    path.mkdir()
    assert "int8.json cannot be read" in complaint()


def random_classifier(rng: random.Random, root: RootFolder, kind: str) -> HplmArtifact:
    candidates = (random_artifact(rng, root, kind) for _ in range(1000))
    return next(each for each in candidates if each.task == "classification" and len(each.labels) > 1)


def test_marked_weights_in_changing_slots_answer_their_own_rows_only(built_home: Home) -> None:
    root = RootFolder(built_home.root("tiny"))
    rng = random.Random(4)
    torch.manual_seed(4)
    stack = UpperStack(root, StackSettings(dtype="int8", num_slots=5))
    assert stack.precision.products == "int8"
    marks = {key: Mark.of("acme/marked", key) for key in range(1, 61)}
    artifacts = {
        key: mark.put_into(random_classifier(rng, root, KINDS[key % len(KINDS)]), root.geometry.num_upper_layers)
        for key, mark in marks.items()
    }
    for _ in range(150):
        usable = rng.sample(sorted(marks), 4)
        keys = [rng.choice(usable) for _ in range(rng.randint(1, 16))]
        rows = [torch.randn(rng.choice([1, 3, 16, 32]), root.geometry.hidden_size).half() for _ in keys]
        ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in keys]  # type: ignore[misc]
        for key, logits in zip(keys, stack.run(stack.pack(rows, ready), ready), strict=True):
            probabilities = functional.softmax(logits, dim=-1).tolist()
            assert marks[key].fits(dict(zip(artifacts[key].labels, probabilities, strict=True)))
        for hplm in ready:
            stack.release(hplm)


def test_a_machine_without_the_instructions_computes_in_bf16_and_says_so(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "int8_instructions", lambda: None)
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: True)
    monkeypatch.setattr(precision, "has_amx", lambda: False)
    with caplog.at_level(logging.WARNING):
        stack = UpperStack(RootFolder(built_home.root("tiny")), StackSettings(dtype="int8", num_slots=2))
    assert stack.precision == Precision(torch.bfloat16)
    assert "the processor has neither VNNI nor AVX2 instructions; the upper layers compute in bf16" in caplog.text
    assert fastest_dtype("cpu") == ("bf16", "the processor has neither VNNI nor AVX2 instructions")
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: False)
    assert precision_of("int8", CPU).dtype == "fp32"
    assert fastest_dtype("cpu")[0] == "fp32"


def test_fp32_takes_the_place_of_bf16_without_its_instructions_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: False)
    with caplog.at_level(logging.INFO):
        assert precision_of("bf16", CPU) == Precision(torch.float32)
    assert "the processor has no bf16 instructions; the upper layers compute in fp32" in caplog.text
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert precision_of("bf16", torch.device("cuda")).dtype == "bf16"


def test_without_bf16_instructions_all_but_the_products_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: False)
    assert precision_of("int8", CPU) == Precision(torch.float32, "int8")
    assert fastest_dtype("cpu")[0] == "int8"
    assert fastest_dtype("gpu")[0] == "bf16"
