"""A pretrained model, split into the parts of a root.

Usage:
    parts = convert(source, num_lower_layers=3, max_tokens=128)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from backends.root.lower import Aggregation, FragmentEncoder
from backends.root.tokenizer import exchanged
from backends.root.upper import UpperLayers
from builder.construct.root.families import FAMILIES, Family, LayerNames
from builder.construct.root.pretrained import load_pretrained

_DEFAULT_LAYER_NORM_EPS = 1e-12
# Tokenizers tell the segments of a pair apart whether the model does or not.
_LEAST_TYPES = 2


@dataclass(frozen=True)
class RootParts:
    """A root in memory, before it is written: its sizes, and the three modules it consists of."""

    geometry: RootGeometry
    lower: FragmentEncoder
    aggregation: Aggregation
    upper: UpperLayers

    def modules(self) -> dict[str, nn.Module]:
        return {"lower": self.lower, "aggregation": self.aggregation, "upper": self.upper}

    def to(self, device: torch.device) -> None:
        """Move the modules."""
        for module in self.modules().values():
            module.to(device)


def convert(folder: Path, num_lower_layers: int, max_tokens: int, n: int = 3, num_sinks: int = 0) -> RootParts:
    """Split a BERT-family model at `num_lower_layers`; the gate, the sinks and the second embeddings start neutral."""
    config: Any = AutoConfig.from_pretrained(folder)
    family = _family(folder, config)
    geometry = replace(_geometry(folder, config, family, num_lower_layers, max_tokens, n), num_sinks=num_sinks)
    state = load_pretrained(folder).state_dict()
    lower, upper, aggregation = FragmentEncoder(geometry), UpperLayers(geometry), Aggregation(geometry)
    with torch.no_grad():
        _copy_embeddings(lower, state, geometry, family.position(geometry.pad_id))
        for index, layer in enumerate([*lower.layers, *upper.layers]):
            _copy_layer(layer, state, family.layers, index)
        last_norm = f"{family.layers.prefix}.{num_lower_layers - 1}.{family.layers.linear['ffn_norm']}"
        _copy_linear(aggregation.norm, state, last_norm)
    return RootParts(geometry, lower, aggregation, upper)


def padding_exchange(geometry: RootGeometry) -> Tensor:
    """The model's own id of each of the root's ids, and the other way round.

    Shape: `[V]` int64
    """
    return torch.from_numpy(exchanged(np.arange(geometry.vocab_size), geometry.pad_id))


def _family(folder: Path, config: Any) -> Family:
    if config.model_type not in FAMILIES:
        raise InvalidArgumentError(
            f"{folder} holds a {config.model_type} model; roots are made of {', '.join(FAMILIES)} models"
        )
    return FAMILIES[config.model_type]


def _geometry(
    folder: Path, config: Any, family: Family, num_lower_layers: int, max_tokens: int, n: int
) -> RootGeometry:
    if not 0 < num_lower_layers < config.num_hidden_layers:
        raise InvalidArgumentError(
            f"--lower {num_lower_layers} leaves no upper layer: the model has {config.num_hidden_layers} layers"
        )
    if config.pad_token_id is None:
        raise InvalidArgumentError(f"{folder} names no padding token; fragments need its id as the empty slot")
    most_tokens = config.max_position_embeddings - family.position(config.pad_token_id)
    if max_tokens > most_tokens:
        raise InvalidArgumentError(f"--max-tokens {max_tokens} exceeds the model's {most_tokens}")

    def sized(name: str) -> Any:
        return getattr(config, family.config_names.get(name, name))

    embedding_size = getattr(config, "embedding_size", config.hidden_size)
    return RootGeometry(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=sized("intermediate_size"),
        num_heads=config.num_attention_heads,
        num_lower_layers=num_lower_layers,
        num_upper_layers=config.num_hidden_layers - num_lower_layers,
        max_tokens=max_tokens,
        type_vocab_size=max(_LEAST_TYPES, getattr(config, "type_vocab_size", 0)),
        layer_norm_eps=getattr(config, "layer_norm_eps", _DEFAULT_LAYER_NORM_EPS),
        activation=sized("hidden_act"),
        n=n,
        pad_id=config.pad_token_id,
        embedding_size=None if embedding_size == config.hidden_size else embedding_size,
    )


def _copy_embeddings(
    lower: FragmentEncoder, state: Mapping[str, Tensor], geometry: RootGeometry, position: int
) -> None:
    words = state["embeddings.word_embeddings.weight"]
    lower.word_embeddings.weight.copy_(words[padding_exchange(geometry)])
    slots = state["embeddings.position_embeddings.weight"][position : position + geometry.n]
    types = state.get("embeddings.token_type_embeddings.weight")
    lower.slot_embeddings.weight.copy_(slots if types is None else slots + types[0])
    _copy_linear(lower.embedding_norm, state, "embeddings.LayerNorm")
    if geometry.embedding_size is not None:
        _copy_linear(lower.embedding_projection, state, "embeddings_project")


def _copy_layer(layer: nn.Module, state: Mapping[str, Tensor], names: LayerNames, index: int) -> None:
    for ours, theirs in names.linear.items():
        _copy_linear(getattr(layer, ours), state, f"{names.prefix}.{index}.{theirs}")
    for kind in ("weight", "bias"):
        parts = [state[f"{names.prefix}.{index}.{name}.{kind}"] for name in names.query_key_value]
        getattr(layer.query_key_value, kind).copy_(torch.cat(parts))


def _copy_linear(target: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    target.get_parameter("weight").copy_(state[f"{prefix}.weight"])
    target.get_parameter("bias").copy_(state[f"{prefix}.bias"])
