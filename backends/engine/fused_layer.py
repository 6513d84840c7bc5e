"""A layer for inference whose residuals are added inside the products in front of them, where that is free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from backends.adapters.product import BatchAdapters, BatchLayer
from backends.root.encoder import Attend, Site


class LinearProduct(Protocol):
    """A linear layer that adds `plus` to its outputs.

    Shape: inputs `[T, in]`, plus `[T, out]` → `[T, out]`.
    """

    def __call__(self, inputs: Tensor, /, plus: Tensor | None = None) -> Tensor: ...


class FusedLayer(ABC):
    """Computes what `EncoderLayer` computes.

    Args:
        index: Position among the upper layers, for the attention.
        query_key_value: Product in front of the attention.
        attention_output: Product behind it.
        attention_norm: Norm behind the attention's residual sum.
        ffn_norm: Norm behind the feed-forward part's.
    """

    def __init__(
        self,
        index: int,
        query_key_value: LinearProduct,
        attention_output: LinearProduct,
        attention_norm: nn.LayerNorm,
        ffn_norm: nn.LayerNorm,
    ) -> None:
        self._index = index
        self._query_key_value = query_key_value
        self._attention_output = attention_output
        self._attention_norm, self._ffn_norm = attention_norm, ffn_norm

    def __call__(self, hidden: Tensor, attend: Attend, adapter: BatchLayer) -> Tensor:
        fused = adapter.project("query_key_value", hidden, self._query_key_value(hidden))
        context = attend(self._index, *fused.chunk(3, dim=-1))
        inside, after = _residual(adapter, "attention", hidden)
        attended = adapter.project("attention_output", context, self._attention_output(context, inside))
        hidden = adapter.add_and_norm("attention", attended, after, self._attention_norm)
        inside, after = _residual(adapter, "output", hidden)
        return adapter.add_and_norm("output", self._feed_forward(hidden, adapter, inside), after, self._ffn_norm)

    @abstractmethod
    def _feed_forward(self, hidden: Tensor, adapter: BatchLayer, plus: Tensor | None) -> Tensor:
        """Compute the feed-forward part as adapted, and add `plus`."""


class FusedLayers:
    """Fused layers, one after the other."""

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        self._layers = layers

    def __call__(
        self, hidden: Tensor, attend: Attend, adapters: BatchAdapters, span: Sequence[int] | None = None
    ) -> Tensor:
        span = range(len(self._layers)) if span is None else span
        if 0 in span:
            hidden = adapters.enter(hidden)
        for index in span:
            hidden = self._layers[index](hidden, attend, adapters.layer(index))
        return hidden


def _residual(adapter: BatchLayer, site: Site, residual: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the residual for inside the product, or for after it where a part reads the states without it."""
    return (None, residual) if adapter.reads_states(site) else (residual, None)
