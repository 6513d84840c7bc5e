"""Layers that round as int8 does, to tune against them: they compute what the products in int8 compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.int8_instructions import int8_instructions
from backends.root.int8_linear import AFTER, CENTRED, QuantisedLinear, Range
from bench.kit.rounded_upper import RoundedLinear, rounded_upper
from layer_cases import random_upper, relative_error

GEOMETRY = RootGeometry(100, 32, 128, 4, 1, 2, 32, 2, 1e-12, "gelu")


@pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
@pytest.mark.parametrize(("inputs", "is_smoothed"), [(CENTRED, False), (CENTRED, True), (AFTER["gelu"], False)])
def test_rounded_products_are_those_in_int8(inputs: Range, is_smoothed: bool) -> None:
    torch.manual_seed(7)
    linear, smoothing = nn.Linear(48, 64), torch.logspace(-1, 1, 48) if is_smoothed else None
    states = nn.functional.gelu(torch.randn(96, 48))
    in_int8 = QuantisedLinear(linear.weight, linear.bias, torch.float32, inputs, smoothing)
    got = RoundedLinear(linear, inputs, smoothing)(states)
    torch.testing.assert_close(got, in_int8(states), rtol=1e-4, atol=1e-4)


def test_gradients_pass_the_rounding_and_weights_do_not_learn() -> None:
    torch.manual_seed(8)
    upper = rounded_upper(random_upper(GEOMETRY), "gelu", {})
    torch.manual_seed(8)
    plain = random_upper(GEOMETRY)
    rows = torch.randn(2, 5, 32)
    attend = padded_attention(4, torch.ones(2, 5, dtype=torch.bool))
    gradients = []
    for layers in (upper, plain):
        states = rows.clone().requires_grad_()
        layers(states, attend).square().mean().backward()
        assert states.grad is not None
        gradients.append(states.grad)
    assert relative_error(gradients[0], gradients[1]) < 0.3
    assert not any(parameter.requires_grad for parameter in upper.parameters())


@pytest.mark.gpu
def test_layers_on_a_gpu_round_as_on_a_processor() -> None:
    torch.manual_seed(9)
    linear, states = nn.Linear(48, 64), torch.randn(4, 24, 48)
    rounded = RoundedLinear(linear, CENTRED, torch.logspace(-1, 1, 48))
    expected = rounded(states)
    torch.testing.assert_close(rounded.cuda()(states.cuda()).cpu(), expected, rtol=1e-3, atol=1e-3)
