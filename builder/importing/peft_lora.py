"""PEFT's LoRA folders: `adapter_config.json` and `adapter_model.safetensors` (or `.bin`).

The weights say which modules are adapted, the configuration how much: y = W·x + scaling · B·A·x with scaling =
alpha / r, or alpha / √r. Every other setting of the configuration is rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import re2
from torch import Tensor

from backends.errors import InvalidArgumentError, shown
from builder.importing.files import is_finite, optional_text, read_weights, reject_settings
from builder.importing.heads import ImportedHead, model_head
from builder.importing.imported import ImportedFolder
from builder.importing.modules import LayerModule

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "attention.self.query": "lora.query",
        "attention.self.key": "lora.key",
        "attention.self.value": "lora.value",
        "attention.output.dense": "lora.attention_output",
        "intermediate.dense": "lora.ffn_in",
        "output.dense": "lora.ffn_out",
        # DistilBERT's names
        "attention.q_lin": "lora.query",
        "attention.k_lin": "lora.key",
        "attention.v_lin": "lora.value",
        "attention.out_lin": "lora.attention_output",
        "ffn.lin1": "lora.ffn_in",
        "ffn.lin2": "lora.ffn_out",
    }
)
_FAMILY = r"^base_model\.model\.(?:(?P<family>[a-z_]+)\.)?"
_LORA_KEY = re.compile(
    _FAMILY + r"(?:encoder|transformer)\.layer\.(?P<layer>\d{1,6})\.(?P<site>[a-z_0-9.]+)\.lora_(?P<side>[AB])\.weight$"
)
_HEAD_KEY = re.compile(_FAMILY + r"(?P<name>(?:classifier|pooler|pre_classifier)\b[a-z_.]*\.(?:weight|bias))$")
_KNOWN_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "lora_magnitude_vector": "DoRA rescales the shared weights of each tenant",
        "lora_embedding_": "it adapts the embeddings, which are part of a table here",
        "embeddings.": "it adapts the embeddings, which are part of a table here",
        "lora_B.bias": "LoRA with a bias of its own (lora_bias) is not served",
    }
)
_REJECTED: Mapping[str, str] = MappingProxyType(
    {
        "use_dora": "DoRA rescales the shared weights of each tenant",
        "lora_bias": "LoRA with a bias of its own is not served",
        "bias": "trained biases of the shared layers are not served; train with bias='none'",
        "fan_in_fan_out": "that is for models whose weights are stored transposed, not for BERT",
        "layer_replication": "replicated layers make another model than the root",
        "target_parameters": "adapted bare parameters are not served",
        "trainable_token_indices": "trained embeddings are part of a table here",
        "alora_invocation_tokens": "activated LoRA depends on the tokens of each text",
        "use_qalora": "QA-LoRA groups the inputs",
        "use_bdlora": "block-diagonal LoRA is not served",
        "velora_config": "VeLoRA is not served",
        "kasa_config": "KaSA is not served",
        "monteclora_config": "MonteCLoRA is not served",
        "arrow_config": "Arrow chooses among several adapters",
    }
)
_HARMLESS = frozenset(
    "r lora_alpha lora_dropout target_modules exclude_modules use_rslora rank_pattern alpha_pattern modules_to_save "
    "layers_to_transform layers_pattern init_lora_weights peft_type peft_version task_type auto_mapping revision "
    "base_model_name_or_path inference_mode megatron_config megatron_core loftq_config eva_config corda_config "
    "lora_ga_config qalora_group_size runtime_config ensure_weight_tying".split()
)
_SCALING = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
_INIT_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# A tenant writes these patterns: PEFT one per module at most, people a few.
_MAX_PATTERNS = 1_000
_MAX_PATTERN_CHARACTERS = 1_000
_TASKS: Mapping[str, str] = MappingProxyType({"SEQ_CLS": "classification", "TOKEN_CLS": "ner"})
_NO_TASK = (None, "FEATURE_EXTRACTION")


@dataclass
class _Weights:
    """The tensors of a file: low-rank pairs by their module's name, layer and site, and those of the head.

    `family` is the name under which a model with a head keeps its BERT.
    """

    pairs: dict[tuple[str, int, str], dict[str, Tensor]] = field(default_factory=dict)
    head: dict[str, Tensor] = field(default_factory=dict)
    family: str = ""


def read_peft_lora(folder: Path, config: Mapping[str, Any]) -> ImportedFolder:
    path = folder / "adapter_config.json"
    _check_config(path, config)
    weights = _sorted_weights(folder)
    return ImportedFolder(
        modules=[_module(path, config, *key, pair) for key, pair in weights.pairs.items()],
        head=_head(folder, config, weights),
        task=_TASKS.get(str(config.get("task_type"))),
        base=optional_text(path, config, "base_model_name_or_path"),
        upper_only="with layers_to_transform",
        origin={
            "format": "peft lora",
            "version": config.get("peft_version"),
            "scaling": {name: config[name] for name in _SCALING if name in config},
        },
    )


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    if config["peft_type"] != "LORA":
        raise InvalidArgumentError(
            f"{path}: peft_type is {shown(config['peft_type'])}; of PEFT's adapters LORA is served"
        )
    if (task := config.get("task_type")) not in (*_TASKS, *_NO_TASK):
        raise InvalidArgumentError(f"{path}: task_type is {shown(task)}; {', '.join(_TASKS)} are served")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.startswith(_INIT_CHANGES_BASE):
        raise InvalidArgumentError(
            f"{path}: init_lora_weights is {shown(init)}, which changes the base's own weights; save the adapter anew "
            "with save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        )
    settings = {name: value for name, value in config.items() if (name, value) != ("bias", "none")}
    reject_settings(path, settings, _REJECTED, _HARMLESS)
    for name, patterns in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        _require_number(path, name, config.get(name))
        if not isinstance(config.get(patterns) or {}, dict):
            raise InvalidArgumentError(f"{path}: {patterns} is not a JSON object")
        _check_patterns(path, patterns, config.get(patterns) or {})


def _check_patterns(path: Path, name: str, patterns: Mapping[str, Any]) -> None:
    if len(patterns) > _MAX_PATTERNS:
        raise InvalidArgumentError(f"{path}: {name} has {len(patterns)} patterns; {_MAX_PATTERNS} are allowed")
    for pattern, value in patterns.items():
        if len(pattern) > _MAX_PATTERN_CHARACTERS:
            raise InvalidArgumentError(f"{path}: {name} has a pattern of {len(pattern)} characters")
        try:
            _compiled(pattern)
        except (re2.error, UnicodeEncodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeError) else error.args[0].decode(errors="replace")
            raise InvalidArgumentError(
                f"{path}: {name} has {pattern!r}, which is no regular expression that is read here: {reason}"
            ) from error
        _require_number(path, f"{name} of {pattern!r}", value)


def _compiled(pattern: str) -> Any:
    """Compile a pattern that fits a module's name or its end, as PEFT reads them; RE2 matches in linear time."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(rf"(.*\.)?({pattern})$", options)


def _require_number(path: Path, name: str, value: Any) -> None:
    if not is_finite(value):
        found = "missing" if value is None else f"{shown(value)}, which is not a number"
        raise InvalidArgumentError(f"{path}: {name} is {found}")


def _sorted_weights(folder: Path) -> _Weights:
    weights = _Weights()
    for key, tensor in read_weights(folder, _WEIGHTS).items():
        if (match := _LORA_KEY.match(key)) and match["site"] in _PARTS:
            name = key.removeprefix("base_model.model.").rpartition(".lora_")[0]
            weights.pairs.setdefault((name, int(match["layer"]), match["site"]), {})[match["side"]] = tensor
        elif match := _HEAD_KEY.match(key):
            weights.head[match["name"]] = tensor
        else:
            reason = next((why for part, why in _KNOWN_KEYS.items() if part in key), "it is not known what it changes")
            raise InvalidArgumentError(f"{folder}: unknown weights {key!r}; {reason}")
        weights.family = weights.family or match["family"] or ""
    if not weights.pairs:
        raise InvalidArgumentError(f"{folder} holds no LoRA weights")
    return weights


def _module(
    path: Path, config: Mapping[str, Any], name: str, layer: int, site: str, pair: Mapping[str, Tensor]
) -> LayerModule:
    if set(pair) != {"A", "B"}:
        raise InvalidArgumentError(f"{path.parent}: {name} has lora_{next(iter(pair))} only")
    scaling = _scaling(path, config, name, len(pair["A"]))
    return LayerModule(_PARTS[site], layer, site, {"down": pair["A"], "up": pair["B"] * scaling})


def _scaling(path: Path, config: Mapping[str, Any], name: str, rank: int) -> float:
    said = _patterned(config.get("rank_pattern"), name, config["r"])
    if said != rank or not rank:
        raise InvalidArgumentError(f"{path}: {name} has rank {shown(said)} there, but {rank} in the weights")
    alpha = _patterned(config.get("alpha_pattern"), name, config["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _patterned(patterns: Mapping[str, Any] | None, name: str, default: Any) -> Any:
    """Find the value of the first pattern that fits the module's name or its end."""
    fitting = (value for pattern, value in (patterns or {}).items() if _compiled(pattern).match(name))
    return next(fitting, default)


def _head(folder: Path, config: Mapping[str, Any], weights: _Weights) -> ImportedHead | None:
    if not weights.head:
        return None
    if (task := config.get("task_type")) in _NO_TASK:
        raise InvalidArgumentError(f"{folder} has a head, but task_type {shown(task)} does not say what it is for")
    return model_head(weights.head, weights.family, task == "TOKEN_CLS", str(folder))
