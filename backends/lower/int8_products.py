"""The products of the lower layers over fragments in int8.

What their inputs are divided by is found when the layers are read, from fragments of random tokens: on MiniLM they
smooth as well as those of texts.
"""

from __future__ import annotations

import torch

from backends.lower.fragment_products import Products, ProductsOf, with_scaled_queries
from backends.root.encoder import EncoderLayer
from backends.root.geometry import RootGeometry
from backends.root.int8_feed_forward import Int8FeedForward
from backends.root.int8_linear import QuantisedLinear
from backends.root.lower import FragmentEncoder
from backends.root.smoothing import smoothing_by

_RANDOM_FRAGMENTS = 64


@torch.inference_mode()
def int8_products_of(encoder: FragmentEncoder) -> ProductsOf:
    """Find an encoder's smoothing, and return how products are made of its layers.

    Raises:
        CorruptFileError: The layers compute NaN or infinity.
    """
    shape = (_RANDOM_FRAGMENTS, encoder.slot_embeddings.num_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, encoder.word_embeddings.num_embeddings, shape, generator=generator)
    smoothing = smoothing_by(encoder.layers, lambda: encoder(ids), "lower layers")

    def made(layer: EncoderLayer, geometry: RootGeometry, dtype: torch.dtype) -> Products:
        weight, bias = with_scaled_queries(layer.query_key_value, geometry)
        last = layer.attention_output
        return Products(
            QuantisedLinear(weight, bias, dtype, smoothing=smoothing[layer.index, "query_key_value"]),
            QuantisedLinear(last.weight, last.bias, dtype),
            Int8FeedForward(layer, geometry.activation, dtype, smoothing[layer.index, "ffn_in"]),
        )

    return made
