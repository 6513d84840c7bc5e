"""The BERT family's names of its parts: one table per way of naming, one entry per kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class LayerNames:
    """The names of a layer's weights in the model's state, by our names for them."""

    prefix: str
    query_key_value: tuple[str, str, str]
    linear: Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """One kind of model: its names, and where its configuration differs from BERT's.

    `config_names` maps our names of sizes to theirs where these differ; `positions_follow_padding` says that the first
    position has the number `pad_id + 1`.
    """

    layers: LayerNames
    positions_follow_padding: bool = False
    config_names: Mapping[str, str] = field(default_factory=dict)

    def position(self, pad_id: int) -> int:
        """The row of the position table that belongs to a text's first token."""
        return pad_id + 1 if self.positions_follow_padding else 0


_BERT_LAYERS = LayerNames(
    prefix="encoder.layer",
    query_key_value=("attention.self.query", "attention.self.key", "attention.self.value"),
    linear={
        "attention_output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "ffn_in": "intermediate.dense",
        "ffn_out": "output.dense",
        "ffn_norm": "output.LayerNorm",
    },
)
_DISTILBERT_LAYERS = LayerNames(
    prefix="transformer.layer",
    query_key_value=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    linear={
        "attention_output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "ffn_in": "ffn.lin1",
        "ffn_out": "ffn.lin2",
        "ffn_norm": "output_layer_norm",
    },
)
_BERT = Family(_BERT_LAYERS)
_ROBERTA = Family(_BERT_LAYERS, positions_follow_padding=True)
_DISTILBERT = Family(_DISTILBERT_LAYERS, config_names={"intermediate_size": "hidden_dim", "hidden_act": "activation"})

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "bert": _BERT,
        "electra": _BERT,
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
        "camembert": _ROBERTA,
        "distilbert": _DISTILBERT,
    }
)
"""Families by the `model_type` of a Hugging Face configuration."""
