"""The shared upper layers as a stack runs them, for inference only.

On a CPU with bf16 instructions the weights are kept in the order in which the matrix product reads them; else every
product would reorder them first. The activation is fused into the product in front of it, and the feed-forward part
runs in blocks that stay in the cache. In int8 and fp8 the quantised layers run (`quantised_layers.py`), everywhere else
the root's own.

A product of these is compiled for each number of tokens that it meets. Batches have any number, so tokens of zeros fill
them up to a few numbers that recur. Rows do not attend to these tokens, and their results are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.adapters.product import BatchAdapters, BatchLayer
from backends.engine.fused_layer import FusedLayer, FusedLayers
from backends.engine.precision import Precision
from backends.engine.quantised_layers import int8_layers, rowwise_layers
from backends.root.encoder import ACTIVATION_FUNCTIONS, Attend, EncoderLayer
from backends.root.int8_file import Smoothing
from backends.root.packed import FUSED, PackedLinear, cpu_multiplies_bf16
from backends.root.upper import UpperLayers

_BLOCK_WIDTH = 1024
_TOKEN_STEP = 32
"""Without this step products take two to three times as long, and their compiled forms a gigabyte."""


class ServedLayers(Protocol):
    """Layers of a span, by default all of them.

    Shape: hidden `[T, H]` → `[T, H]`.
    """

    def __call__(
        self, hidden: Tensor, attend: Attend, adapters: BatchAdapters, span: Sequence[int] | None = None
    ) -> Tensor: ...


def served_layers(
    upper: UpperLayers,
    activation: str,
    precision: Precision,
    device: torch.device,
    smoothing: Smoothing | None = None,
) -> ServedLayers:
    """Choose how to run layers in fp32, which are converted, on a device that has the precision."""
    dtype, products = precision.states, precision.products
    if products is not None:
        if products == "int8" and device.type == "cpu":
            return FilledLayers(int8_layers(upper, activation, dtype, smoothing or {}))
        return FilledLayers(rowwise_layers(upper, activation, products, dtype, device, smoothing or {}))
    upper = upper.to(device=device, dtype=dtype)
    if not _packs(dtype, device):
        return PlainLayers(upper)
    return FilledLayers(_packed_layers(upper, activation) if activation in FUSED else PlainLayers(upper))


def served_linear(linear: nn.Linear, precision: Precision, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a linear layer beside the shared ones, which int8 and fp8 leave as it is: `[T, n]` → `[T, m]`."""
    linear = linear.to(device=device, dtype=precision.states)
    if not _packs(precision.states, device):
        return linear
    packed = PackedLinear.of(linear)
    return lambda states: packed(_filled(states))[: len(states)]


def _packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights are kept in the order in which a product reads them."""
    return device.type == "cpu" and dtype == torch.bfloat16 and cpu_multiplies_bf16()


class FilledLayers:
    """Layers that run over a number of tokens that recurs, filled up with zeros."""

    def __init__(self, layers: ServedLayers) -> None:
        self._layers = layers

    def __call__(
        self, hidden: Tensor, attend: Attend, adapters: BatchAdapters, span: Sequence[int] | None = None
    ) -> Tensor:
        return self._layers(_filled(hidden), attend, adapters, span)[: len(hidden)]


def _filled(states: Tensor) -> Tensor:
    """Fill up the number of tokens with zeros."""
    return functional.pad(states, (0, 0, 0, filled_length(len(states)) - len(states)))


def filled_length(num_tokens: int) -> int:
    """Round a number of tokens up to one that recurs."""
    return num_tokens + -num_tokens % _TOKEN_STEP


class PlainLayers:
    def __init__(self, upper: UpperLayers) -> None:
        self._upper = upper

    def __call__(
        self, hidden: Tensor, attend: Attend, adapters: BatchAdapters, span: Sequence[int] | None = None
    ) -> Tensor:
        states: Tensor = self._upper(hidden, attend, adapters, span)
        return states


def _packed_layers(upper: UpperLayers, activation: str) -> FusedLayers:
    return FusedLayers([_PackedLayer(layer, activation) for layer in upper.layers if isinstance(layer, EncoderLayer)])


class _PackedLayer(FusedLayer):
    def __init__(self, layer: EncoderLayer, activation: str) -> None:
        products = PackedLinear.of(layer.query_key_value), PackedLinear.of(layer.attention_output)
        super().__init__(layer.index, *products, layer.attention_norm, layer.ffn_norm)
        blocks = max(1, layer.ffn_in.out_features // _BLOCK_WIDTH)
        into = zip(layer.ffn_in.weight.chunk(blocks), layer.ffn_in.bias.chunk(blocks), strict=True)
        self._ffn_in = [PackedLinear(weight, bias) for weight, bias in into]
        # The bias is added once.
        biases = [layer.ffn_out.bias, *[None] * (blocks - 1)]
        out_of = zip(layer.ffn_out.weight.chunk(blocks, dim=1), biases, strict=True)
        self._ffn_out = [PackedLinear(weight, bias) for weight, bias in out_of]
        self._activation, self._fused = ACTIVATION_FUNCTIONS[activation], FUSED[activation]

    def _feed_forward(self, hidden: Tensor, adapter: BatchLayer, plus: Tensor | None) -> Tensor:
        if not (adapter.changes("ffn_in") or adapter.changes("ffn_out")):
            return self._out_of((into.activated(hidden, self._fused) for into in self._ffn_in), plus)
        inner = torch.cat([into(hidden) for into in self._ffn_in], dim=-1)
        inner = self._activation(adapter.project("ffn_in", hidden, inner))
        out = self._out_of(inner.chunk(len(self._ffn_out), dim=-1), plus)
        return adapter.project("ffn_out", inner, out)

    def _out_of(self, blocks: Iterable[Tensor], plus: Tensor | None) -> Tensor:
        """Add up the products of blocks, one after the other, so that each block is still in the cache."""
        products = zip(self._ffn_out, blocks, strict=True)
        first, block = next(products)
        out = first(block, plus)
        for product, block in products:
            out = product(block, out)
        return out
