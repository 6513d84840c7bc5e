"""Layers as GPUs quantise them, in fp8 and int8: against the same layers in fp32, alone and with adapters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import nn

from adapter_reference import KINDS, random_artifact
from backends.engine.layers import FilledLayers
from backends.engine.precision import Precision, missing_for, precision_of
from backends.engine.quantised_layers import rowwise_layers
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.geometry import ACTIVATIONS, RootGeometry
from backends.root.int8_file import SMOOTHED
from backends.root.rowwise_linear import ROWWISE
from backends.root.store import RootFolder
from layer_cases import LayerCases, relative_error

CPU = torch.device("cpu")
PRODUCTS = ("fp8", "int8")
Products = Literal["fp8", "int8"]
ERROR_OF_LINEAR = {"fp8": 0.1, "int8": 0.03}
ERROR_OF_LAYERS = {"fp8": 0.25, "int8": 0.08}
"""Two layers of random weights, adapters included: at most two thirds of it, of hundreds of batches."""
GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 2, 32, 2, 1e-12, "gelu")


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 64), (44, 70)])
def test_a_product_has_the_scale_of_each_token_and_of_each_output(
    products: Products, dtype: torch.dtype, inputs: int, outputs: int
) -> None:
    """Sizes that the device's products do not take."""
    torch.manual_seed(1)
    linear = nn.Linear(inputs, outputs).requires_grad_(False)
    linear.weight.mul_(torch.logspace(-2, 2, outputs)[:, None])
    quantised = ROWWISE[products](linear.weight, linear.bias, dtype, CPU)
    states = (torch.randn(96, inputs) * torch.logspace(-3, 3, 96)[:, None]).to(dtype)
    expected, got = linear(states.float()), quantised(states)
    assert got.dtype == dtype and got.shape == expected.shape
    for token in range(len(states)):
        assert relative_error(got[token], expected[token]) < ERROR_OF_LINEAR[products]
    for output in range(outputs):
        assert relative_error(got[:, output], expected[:, output]) < ERROR_OF_LINEAR[products]
    plus = torch.randn(96, outputs).to(dtype)
    torch.testing.assert_close(quantised(states, plus), got + plus, rtol=0.02, atol=1e-2)


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_token_does_not_see_the_tokens_beside_it(products: Products) -> None:
    torch.manual_seed(3)
    linear = nn.Linear(48, 64).requires_grad_(False)
    quantised = ROWWISE[products](linear.weight, linear.bias, torch.float32, CPU)
    states = torch.randn(64, 48)
    alone = quantised(states)
    others = [token for token in range(64) if token != 7]
    for number in (float("nan"), float("inf"), float("-inf"), 3e38):
        spoiled = states.clone()
        spoiled[7, 5] = number
        got = quantised(spoiled)
        assert torch.equal(got[others], alone[others])
        assert number == 3e38 or not torch.isfinite(got[7]).all()


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38])
def test_a_token_of_nothing_gives_the_bias(products: Products, size: float) -> None:
    linear = nn.Linear(48, 64).requires_grad_(False)
    quantised = ROWWISE[products](linear.weight, linear.bias, torch.float32, CPU)
    torch.testing.assert_close(quantised(torch.full((32, 48), size)), linear.bias.expand(32, 64))


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("mixed", [True, False])
def test_quantised_layers_equal_the_plain_ones(
    products: Products, dtype: torch.dtype, activation: str, mixed: bool
) -> None:
    cases = LayerCases(replace(GEOMETRY, activation=activation), dtype)
    smoothing = {(layer, product): 2 ** (2 * torch.rand(32) - 1) for layer in range(2) for product in SMOOTHED}
    for each in ({}, smoothing) if products == "int8" else ({},):  # fp8 is served without
        layers = FilledLayers(rowwise_layers(cases.upper(), activation, products, dtype, CPU, each))
        for name, error in cases.errors(layers, mixed):
            assert error < ERROR_OF_LAYERS[products], f"{name}: {error:.4f}"


@pytest.mark.parametrize(
    ("products", "capability", "missing", "states"),
    [
        ("fp8", (8, 9), None, torch.bfloat16),
        ("fp8", (9, 0), None, torch.bfloat16),
        ("fp8", (8, 0), "the GPU has capability 8.0, and fp8 needs 8.9", torch.bfloat16),
        ("int8", (8, 0), None, torch.bfloat16),
        ("int8", (7, 5), None, torch.float32),
        ("int8", (7, 0), "the GPU has capability 7.0, and int8 needs 7.5", torch.float32),
    ],
)
def test_an_older_gpu_computes_in_what_it_has_and_says_so(
    products: Products,
    capability: tuple[int, int],
    missing: str | None,
    states: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = torch.device("cuda")
    assert missing_for(products, gpu) == missing
    assert precision_of(products, gpu) == Precision(states, None if missing else products)
    assert (missing or "") in caplog.text
    assert precision_of("bf16", gpu) == Precision(states)


def test_a_processor_has_no_fp8() -> None:
    assert missing_for("fp8", CPU) == "fp8 is for GPUs"
    assert precision_of("fp8", CPU).products is None


@pytest.mark.gpu
@pytest.mark.parametrize("products", PRODUCTS)
def test_a_stack_on_a_gpu_answers_as_in_fp32(products: Products, built_home: Home) -> None:
    root, rng = RootFolder(built_home.root("tiny")), random.Random(5)
    torch.manual_seed(5)
    artifacts = {key: random_artifact(rng, root, kind) for key, kind in enumerate(KINDS, start=1)}
    keys = [rng.choice(sorted(artifacts)) for _ in range(40)]
    rows = [torch.randn(rng.choice([1, 3, 16, 32]), root.geometry.hidden_size).half() for _ in keys]
    answers = []
    for device, dtype in (("cuda", products), ("cpu", "fp32")):
        stack = UpperStack(root, StackSettings(device=device, dtype=dtype, num_slots=len(artifacts) + 1))
        assert stack.precision.dtype == dtype
        ready = [stack.ready(key, lambda key=key: artifacts[key]) for key in keys]  # type: ignore[misc]
        answers.append(torch.cat([each.flatten() for each in stack.run(stack.pack(rows, ready), ready)]))
    assert relative_error(*answers) < 2 * ERROR_OF_LAYERS[products]
