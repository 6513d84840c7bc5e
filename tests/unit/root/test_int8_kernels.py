"""The compiled loops around products in int8 against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from backends.root.int8_instructions import int8_instructions
from backends.root.int8_linear import AFTER, CENTRED, QuantisedLinear, Range
from bench.kit.rounded_upper import dequantised

pytestmark = pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
DTYPES = [torch.float32, torch.bfloat16]
SEED = 11


def plainly_quantised(states: Tensor, inputs: Range) -> tuple[Tensor, Tensor]:
    states = states.double()
    if inputs.lowest is None:
        scales = states.abs().amax(dim=1) / 127
        return (states / scales[:, None]).round() + 128, scales
    scales = (states.amax(dim=1).clamp_min(0) - inputs.lowest) / 254
    return ((states - inputs.lowest) / scales[:, None]).round(), scales


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [CENTRED, AFTER["gelu"], AFTER["relu"]])
@pytest.mark.parametrize("width", [1, 31, 768])
def test_values_and_scales_are_those_of_the_plain_formula(dtype: torch.dtype, inputs: Range, width: int) -> None:
    torch.manual_seed(SEED)
    sizes = torch.logspace(-2, 3, 40)[:, None]
    states = (torch.randn(40, width) * sizes if inputs is CENTRED else torch.rand(40, width) * sizes).to(dtype)
    got = inputs.quantised(states)
    values, scales = plainly_quantised(states, inputs)
    torch.testing.assert_close(got.scales.double(), scales, rtol=1e-6, atol=0)
    # A state in the middle of two levels may go either way in fp32.
    assert (got.values.double() - values).abs().max() <= 1
    assert (got.values.double() != values).double().mean() < 0.01, f"seed {SEED}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_product_through_gelu_is_that_of_pytorch(dtype: torch.dtype, is_adapted: bool) -> None:
    torch.manual_seed(SEED)
    linear = QuantisedLinear(torch.randn(96, 48), torch.randn(96), dtype)
    states = linear.quantised((torch.randn(64, 48) * torch.logspace(-2, 1, 64)[:, None]).to(dtype))
    inner = torch.randn(64, 96).to(dtype)
    before = torch.empty(64, 96, dtype=torch.float32)
    before[:] = linear.product(states) * states.scales[:, None] + linear.bias
    expected = functional.gelu(before + inner.float() if is_adapted else before)
    got = linear.multiply_through_gelu(states, inner if is_adapted else None, AFTER["gelu"])
    levels = (dequantised(AFTER["gelu"], got) - expected) / got.scales[:, None]
    assert levels.abs().max() < 0.6
    if is_adapted:
        torch.testing.assert_close(inner.float(), expected, rtol=2**-8, atol=3e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_a_token_that_adapters_spoil_stays_spoiled(dtype: torch.dtype, number: float) -> None:
    """GELU by comparisons of bits would turn some of them into numbers."""
    linear = QuantisedLinear(torch.randn(96, 48), torch.randn(96), dtype)
    states = linear.quantised(torch.randn(8, 48).to(dtype))
    inner = torch.zeros(8, 96, dtype=dtype)
    inner[3, 5] = number
    got = linear.multiply_through_gelu(states, inner, AFTER["gelu"])
    assert torch.isfinite(got.scales).tolist() == [token != 3 for token in range(8)]
