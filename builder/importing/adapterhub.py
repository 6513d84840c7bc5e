"""Folders of the `adapters` library (AdapterHub): bottleneck adapters of the kinds seq_bn and double_seq_bn.

`adapter_config.json` beside `adapter.safetensors` or `pytorch_adapter.bin`, and where the head was saved too
`head_config.json` beside `model_head.safetensors` or `pytorch_model_head.bin`. Adapter names stand in the keys.

With x what the layer's part put out, a its residual and LN its own norm, a site computes LN(x + A(x) + a), or with
`original_ln_before` LN(x + A(LN(x + a)) + a); the older names of the two kinds are pfeiffer and houlsby.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from backends.adapters.head import Head
from backends.errors import InvalidArgumentError, shown
from backends.root.encoder import ACTIVATION_FUNCTIONS
from builder.importing.files import is_finite, optional_text, read_config, read_weights, reject_settings
from builder.importing.heads import ImportedHead, model_head, row_task
from builder.importing.imported import ImportedFolder
from builder.importing.modules import LayerModule

_WEIGHTS = ("adapter.safetensors", "pytorch_adapter.bin")
_HEAD_WEIGHTS = ("model_head.safetensors", "pytorch_model_head.bin")
_PARTS: Mapping[str, str] = MappingProxyType(
    {"attention.output": "bottleneck.attention", "output": "bottleneck.output"}
)
_KEY = re.compile(
    r"^(?:[a-z_]+\.)?encoder\.layer\.(?P<layer>\d{1,6})\.(?P<site>attention\.output|output)\."
    r"(?:adapters|attention_text_task_adapters|attention_text_lang_adapters|layer_text_task_adapters|"
    r"layer_text_lang_adapters)\.(?P<name>[^.]+)\.(?P<leaf>.+)$"
)
_LEAVES: Mapping[str, str] = MappingProxyType(
    {
        "adapter_down.0.weight": "down_weight",
        "adapter_down.0.bias": "down_bias",
        "adapter_up.weight": "up_weight",
        "adapter_up.bias": "up_bias",
        "scaling": "scaling",
    }
)
_REJECTED: Mapping[str, str] = MappingProxyType(
    {
        "inv_adapter": "an invertible adapter changes the embeddings, which are part of a table here",
        "invertible_adapter": "an invertible adapter changes the embeddings, which are part of a table here",
        "use_gating": "gated adapters are not served",
        "phm_layer": "hypercomplex (compacter) layers are not served",
        "ln_before": "a LayerNorm of its own before the adapter is not served",
        "ln_after": "a LayerNorm of its own after the adapter is not served",
        "is_parallel": "parallel adapters (par_bn) are not served; seq_bn and double_seq_bn are",
        "cross_adapter": "cross-attention belongs to decoders",
        "stochastic_depth": "adapters that are dropped at random are not served",
    }
)
_HARMLESS = frozenset(
    "mh_adapter output_adapter reduction_factor non_linearity original_ln_before original_ln_after residual_before_ln "
    "adapter_residual_before_ln scaling leave_out dropout init_weights init_weights_seed inv_adapter_reduction_factor "
    "phm_dim factorized_phm_W shared_W_phm shared_phm_rule factorized_phm_rule phm_c_init phm_init_range learn_phm "
    "hypercomplex_nonlinearity phm_rank phm_bias attention_type new_attention_norm".split()
)
_ACTIVATIONS: Mapping[str, str] = MappingProxyType({"swish": "silu", "gelu_orig": "gelu"})
_HEAD_TASKS = ("classification", "tagging")


def read_adapterhub(folder: Path, saved: Mapping[str, Any]) -> ImportedFolder:
    path = folder / "adapter_config.json"
    config = saved["config"]
    if not isinstance(config, dict):
        raise InvalidArgumentError(f"{path}: config is {shown(config)}, not an adapter's settings")
    _check_config(path, config)
    settings = {"activation": _activation(path, config, saved), "norm_first": bool(config.get("original_ln_before"))}
    scaling = config.get("scaling", 1.0)
    if not isinstance(scaling, str) and not is_finite(scaling):
        raise InvalidArgumentError(f"{path}: scaling is {shown(scaling)}, neither a number nor 'learned'")
    return ImportedFolder(
        modules=_modules(folder, saved.get("name"), scaling, settings),
        head=_head(folder) if (folder / "head_config.json").exists() else None,
        task=None,
        base=optional_text(path, saved, "model_name"),
        upper_only="with leave_out",
        origin={"format": "adapterhub", "version": saved.get("version"), "scaling": scaling},
    )


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    if architecture := config.get("architecture"):
        raise InvalidArgumentError(
            f"{path}: the architecture is {shown(architecture)}; of this library's adapters the bottlenecks seq_bn and "
            "double_seq_bn are served (and LoRA, saved with PEFT)"
        )
    settings = {name: value for name, value in config.items() if name != "architecture"}
    reject_settings(path, settings, _REJECTED, _HARMLESS)
    if config.get("original_ln_after") is False:
        raise InvalidArgumentError(f"{path}: original_ln_after is False; the layer's own norm must follow the adapter")
    if config.get("original_ln_before") and config.get("residual_before_ln", True) is not True:
        raise InvalidArgumentError(
            f"{path}: residual_before_ln is {shown(config['residual_before_ln'])}; "
            "only a residual from before the norm is served"
        )


def _activation(path: Path, config: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """Folders without a version are from the older library, whose gelu was the approximation by tanh."""
    named = str(config.get("non_linearity")).lower()
    activation = "gelu_new" if named == "gelu" and "version" not in saved else _ACTIVATIONS.get(named, named)
    if activation not in ACTIVATION_FUNCTIONS:
        raise InvalidArgumentError(f"{path}: non_linearity {named!r} is not one of {', '.join(ACTIVATION_FUNCTIONS)}")
    return activation


def _modules(folder: Path, name: object, scaling: float | str, settings: Mapping[str, Any]) -> list[LayerModule]:
    modules: dict[tuple[int, str], dict[str, Tensor]] = {}
    for key, tensor in read_weights(folder, _WEIGHTS).items():
        match = _KEY.match(key)
        if match is None or match["leaf"] not in _LEAVES:
            raise InvalidArgumentError(f"{folder}: unknown weights {key!r}; it is not known what they change")
        if match["name"] != name:
            raise InvalidArgumentError(f"{folder}: {key!r} belongs to another adapter than {name!r}")
        modules.setdefault((int(match["layer"]), match["site"]), {})[_LEAVES[match["leaf"]]] = tensor
    if not modules:
        raise InvalidArgumentError(f"{folder} holds no adapter weights")
    return [
        LayerModule(_PARTS[site], layer, site, _folded(folder, layer, site, tensors, scaling), settings)
        for (layer, site), tensors in modules.items()
    ]


def _folded(
    folder: Path, layer: int, site: str, tensors: Mapping[str, Tensor], scaling: float | str
) -> dict[str, Tensor]:
    """The module with its scaling in the up-projection: a number, or learned, one for all or one per channel."""
    learned = isinstance(scaling, str)
    if missing := {*_LEAVES.values()} - {*tensors} - (set() if learned else {"scaling"}):
        raise InvalidArgumentError(f"{folder}: {site} of layer {layer} lacks {', '.join(sorted(missing))}")
    factor = tensors["scaling"] if learned else torch.tensor(float(scaling))
    if factor.numel() not in (1, len(tensors["up_bias"])):
        raise InvalidArgumentError(f"{folder}: {site} of layer {layer} has a scaling of {factor.numel()} numbers")
    return {
        "down_weight": tensors["down_weight"],
        "down_bias": tensors["down_bias"],
        "up_weight": tensors["up_weight"] * factor.reshape(-1, 1),
        "up_bias": tensors["up_bias"] * factor,
    }


def _head(folder: Path) -> ImportedHead:
    path = folder / "head_config.json"
    saved = read_config(path)
    tensors = read_weights(folder, _HEAD_WEIGHTS)
    config = saved.get("config")
    if config is not None and not isinstance(config, dict):
        raise InvalidArgumentError(f"{path}: config is {shown(config)}, not a head's settings")
    labels = _labels(path, (config or saved).get("label2id"))
    if config is None:  # of a model class with one fixed head
        per_token = str(saved.get("model_class")).endswith("ForTokenClassification")
        fixed = model_head(tensors, str(saved.get("model_type")), per_token, str(folder))
        return ImportedHead(fixed.head, fixed.task, labels, fixed.needs_pooler)
    return _flexible_head(path, config, saved.get("name"), tensors, labels)


def _flexible_head(
    path: Path, config: Mapping[str, Any], name: object, tensors: Mapping[str, Tensor], labels: tuple[str, ...] | None
) -> ImportedHead:
    kind, layers, use_pooler = config.get("head_type"), config.get("layers"), bool(config.get("use_pooler"))
    if kind not in _HEAD_TASKS:
        raise InvalidArgumentError(f"{path}: head_type is {shown(kind)}; {' and '.join(_HEAD_TASKS)} heads are served")
    if layers not in (1, 2) or (layers == 2 and use_pooler):
        raise InvalidArgumentError(
            f"{path}: a head of {shown(layers)} layers{' after the pooler' * use_pooler} is not served"
        )
    linears = _linear_layers(path.parent, str(name), tensors)
    if len(linears) != layers:
        raise InvalidArgumentError(f"{path}: the head has {layers} layers there, but {len(linears)} in the weights")
    if layers == 1:
        head = Head(*linears[0])
    else:
        activation = str(config.get("activation_function"))
        head = Head(*linears[1], *linears[0], activation=_ACTIVATIONS.get(activation, activation))
    task = "ner" if kind == "tagging" else row_task(len(head.bias))
    return ImportedHead(head, task, labels, needs_pooler=use_pooler)


def _linear_layers(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer in order; the numbers in between are activations and dropouts."""
    pattern = re.compile(rf"^heads\.{re.escape(name)}\.(?P<number>\d{{1,6}})\.(?P<kind>weight|bias)$")
    if unknown := [key for key in tensors if not pattern.match(key)]:
        raise InvalidArgumentError(f"{folder}: unknown weights {unknown[0]!r} in the head")
    layers = []
    for number in sorted({int(match["number"]) for match in map(pattern.match, tensors) if match}):
        weight, bias = (tensors.get(f"heads.{name}.{number}.{kind}") for kind in ("weight", "bias"))
        if weight is None:
            raise InvalidArgumentError(f"{folder}: layer {number} of the head has no weight in the weights' file")
        layers.append((weight, torch.zeros(len(weight)) if bias is None else bias))
    return layers


def _labels(path: Path, label2id: Any) -> tuple[str, ...] | None:
    if not label2id:
        return None
    if not isinstance(label2id, dict) or not all(type(number) is int for number in label2id.values()):
        raise InvalidArgumentError(f"{path}: label2id is {shown(label2id)}, not a number for each label")
    return tuple(sorted(label2id, key=lambda label: label2id[label]))
