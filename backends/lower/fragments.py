"""Whole fragments through the lower layers, many at once: what no table holds is computed while its text waits.

On a CPU with bf16 instructions the layers' weights are packed, or quantised in an export in int8
(`backends/lower/int8_products.py`). The attention of all fragments is then a few dense products, because a
fragment's own is too small for a kernel. Elsewhere the root's own layers run. A fragment's vectors do not depend on the
fragments beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backends.heartbeat import beat_of_thread
from backends.lower.fragment_products import Products, ProductsOf, packed_products
from backends.lower.settings import LowerDtype
from backends.root.encoder import EncoderLayer
from backends.root.geometry import RootGeometry
from backends.root.int8_instructions import int8_instructions
from backends.root.lower import FragmentEncoder
from backends.root.packed import cpu_multiplies_bf16

_AT_ONCE = 192
"""More at once would not be faster, because their intermediate states leave the cache."""
_STEPS = ((32, 4), (96, 8), (_AT_ONCE, 16))
"""Up to a number of fragments, the step to which theirs is rounded up."""


class ComputesFragments(Protocol):
    """Shape: ids `[K, n]` → `[K, n, H]` fp16, as a table stores them."""

    def __call__(self, ids: Tensor) -> Tensor: ...


def fragment_computer(encoder: FragmentEncoder, geometry: RootGeometry, dtype: LowerDtype) -> ComputesFragments:
    """Choose how to run an encoder: with its products in int8 or packed in bf16, else as it is."""
    in_force = dtype_in_force(dtype)
    if in_force == "int8":
        from backends.lower.int8_products import int8_products_of  # loads Numba, for a second

        return FastFragments(encoder, geometry, int8_products_of(encoder), _states_beside_int8())
    if in_force == "bf16":
        return FastFragments(encoder, geometry, packed_products, torch.bfloat16)
    return PlainFragments(encoder)


def dtype_in_force(dtype: LowerDtype) -> LowerDtype:
    """Return what lower layers compute in on this machine's processor, which may lack what an export names."""
    if dtype == "int8" and int8_instructions() is not None:
        return "int8"
    return "bf16" if dtype != "fp32" and cpu_multiplies_bf16() else "fp32"


def rounding_of(dtype: LowerDtype) -> str:
    """Name what fragments in int8 are rounded by; empty in other dtypes, whose vectors differ far less."""
    in_int8 = dtype_in_force(dtype) == "int8"
    return f"int8 {int8_instructions()} {_states_beside_int8()}" if in_int8 else ""


def _states_beside_int8() -> torch.dtype:
    return torch.bfloat16 if cpu_multiplies_bf16() else torch.float32


class PlainFragments:
    def __init__(self, encoder: FragmentEncoder) -> None:
        self._encoder = encoder

    @torch.inference_mode()
    def __call__(self, ids: Tensor) -> Tensor:
        return torch.cat([self._encoder(part).to(torch.float16) for part in even_parts(ids)])


class FastFragments:
    """Computes what `FragmentEncoder` computes, with hidden states in `dtype`; keeps none of its layers."""

    def __init__(
        self, encoder: FragmentEncoder, geometry: RootGeometry, products_of: ProductsOf, dtype: torch.dtype
    ) -> None:
        self._dtype = dtype
        self._embeddings = encoder.word_embeddings.weight.detach()
        self._slots = encoder.slot_embeddings.weight.detach()[:, None]
        self._embedding_norm, self._embedding_projection = encoder.embedding_norm, encoder.embedding_projection
        self._gate = encoder.gate
        layers = [layer for layer in encoder.layers if isinstance(layer, EncoderLayer)]
        self._layers = [
            _FragmentLayer(layer, sinks, geometry, products_of(layer, geometry, dtype), dtype)
            for layer, sinks in zip(layers, encoder.sinks, strict=True)
        ]

    @torch.inference_mode()
    def __call__(self, ids: Tensor) -> Tensor:
        parts = []
        for part in even_parts(ids):
            filled = functional.pad(part, (0, 0, 0, filled_count(len(part)) - len(part)))
            parts.append(self._computed(filled)[: len(part)])
        return torch.cat(parts)

    def _computed(self, ids: Tensor) -> Tensor:
        """Slots come first, so that the tokens of one slot lie together."""
        slots = ids.t().contiguous()
        is_filled = slots > 0
        words = functional.embedding(slots, self._embeddings).float()
        hidden = self._embedding_projection(self._embedding_norm(words + self._slots)).to(self._dtype).flatten(0, 1)
        # A wholly empty fragment attends to itself, or its softmax would be over nothing.
        is_attended = is_filled | ~is_filled.any(dim=0)
        bias = torch.zeros(slots.shape).masked_fill_(~is_attended, float("-inf"))
        for layer in self._layers:
            hidden = layer(hidden, bias)
        states = hidden.float()
        # Of few numbers PyTorch takes an exponential that rounds otherwise than that of many: not so once rounded here.
        gated = states * torch.sigmoid(self._gate(states).double()).float()
        gated = gated.view(*slots.shape, -1) * is_filled[..., None]
        stored: Tensor = gated.transpose(0, 1).to(torch.float16, memory_format=torch.contiguous_format)
        return stored


def even_parts(ids: Tensor) -> Iterator[Tensor]:
    """Cut fragments into as few parts as possible; a small last one would read all weights for a few fragments.

    The calling thread beats before each, because a call that computes thousands of fragments takes seconds.
    """
    for part in torch.tensor_split(ids, max(1, -(-len(ids) // _AT_ONCE))):
        beat_of_thread()
        yield part


def filled_count(count: int) -> int:
    """Round a number of fragments up to one that recurs, because a product is compiled for each number."""
    step = next(step for up_to, step in _STEPS if count <= up_to)
    return count + -count % step


class _FragmentLayer:
    """One layer over fragments whose tokens lie slot by slot.

    Semantics:
        Scores are products of single numbers, summed for each head by a product with `_of_head`, `[H, h]`, which is one
        where a column of the hidden states belongs to a head. Its transpose spreads a head's weight over its columns.
        Sinks are the same for all tokens, so their keys and values are matrices: `[H, S * h]` and `[S * h, H]`.
    Shape:
        hidden `[n * K, H]`, bias `[n, K]` → `[n * K, H]`.
    """

    def __init__(
        self, layer: EncoderLayer, sinks: Tensor, geometry: RootGeometry, products: Products, dtype: torch.dtype
    ) -> None:
        self._products = products
        self._hidden, self._num_heads = geometry.hidden_size, geometry.num_heads
        columns = torch.arange(self._hidden) // (self._hidden // self._num_heads)
        of_head = functional.one_hot(columns, self._num_heads).float()
        self._attention_norm, self._ffn_norm = (
            copy.deepcopy(norm).to(dtype) for norm in (layer.attention_norm, layer.ffn_norm)
        )
        self._of_head = of_head.to(dtype)
        self._to_columns = self._of_head.t()
        self._num_sinks = sinks.shape[1]
        keys, values = (one[:, :, None] * of_head for one in sinks)  # [S, H, h]
        self._sink_keys = keys.transpose(0, 1).flatten(1).to(dtype)
        self._sink_values = values.transpose(1, 2).flatten(0, 1).to(dtype)

    def __call__(self, hidden: Tensor, bias: Tensor) -> Tensor:
        context = self._attend(self._products.query_key_value(hidden), bias)
        hidden = self._attention_norm(self._products.attention_output(context, hidden))
        states: Tensor = self._ffn_norm(self._products.feed_forward(hidden, hidden))
        return states

    def _attend(self, fused: Tensor, bias: Tensor) -> Tensor:
        n, count = bias.shape
        query, key, value = torch.split(fused.view(n, count, -1), self._hidden, dim=-1)
        products = (query[:, None] * key[None]).flatten(0, 2)
        scores = torch.mm(products, self._of_head).view(n, n, count, -1).float() + bias[None, :, :, None]
        if self._num_sinks:
            of_sinks = torch.mm(query.flatten(0, 1), self._sink_keys).view(n, count, self._num_sinks, -1)
            scores = torch.cat([scores, of_sinks.transpose(1, 2).float()], dim=1)
        weights = scores.softmax(dim=1).to(fused.dtype)
        spread = torch.mm(weights[:, :n].reshape(-1, self._num_heads), self._to_columns).view(n, n, count, -1)
        context = spread[:, 0] * value[0]
        for slot in range(1, n):  # a sum over the slots takes three times as long
            context.addcmul_(spread[:, slot], value[slot])
        context = context.flatten(0, 1)
        if self._num_sinks:
            of_sinks = weights[:, n:].transpose(1, 2).reshape(n * count, -1)
            context = torch.addmm(context, of_sinks, self._sink_values)
        return context
