"""Random adapters of every kind, and the slow, obvious way through the upper half: one row, one hPLM, fp32."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.adapter_set import LORA_MODULES, SITES, AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.parts import Bottleneck, Lora, Norm
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet

Weights = dict[str, Tensor]
KINDS = ("identity", "attention", "output", "double", "seq_bn", "lora", "norms", "entrance", "all")
_BOTTLENECK = ("down_weight", "down_bias", "up_weight", "up_bias")
_ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
}


def random_bottleneck(
    chance: random.Random, layers: int, hidden: int, width: int | None = None, norm_first: bool = False
) -> Bottleneck:
    width = width or chance.randint(1, 20)
    down, up = torch.randn(layers, width, hidden) / hidden**0.5, torch.randn(layers, hidden, width) / width**0.5
    biases = torch.randn(layers, width) / 4, torch.randn(layers, hidden) / 4
    return Bottleneck(down, biases[0], up, biases[1], chance.choice(sorted(_ACTIVATIONS)), norm_first)


def random_lora(chance: random.Random, layers: int, inputs: int, outputs: int) -> Lora:
    rank = chance.randint(1, 20)
    return Lora(torch.randn(layers, rank, inputs) / inputs**0.5, torch.randn(layers, outputs, rank) / rank**0.5 / 2)


def random_adapters(chance: random.Random, geometry: RootGeometry, kind: str) -> AdapterSet:
    layers, hidden, inner = geometry.num_upper_layers, geometry.hidden_size, geometry.intermediate_size
    sites = {"attention": ["attention"], "output": ["output"], "double": SITES, "seq_bn": ["output"], "all": SITES}
    first = {"seq_bn"} if kind == "seq_bn" else {"output"} if kind == "all" else set()
    sizes = {"ffn_in": (hidden, inner), "ffn_out": (inner, hidden)}
    modules = {"lora": chance.sample(LORA_MODULES, chance.randint(1, 6)), "all": LORA_MODULES}.get(kind, [])
    return AdapterSet(
        {
            site: random_bottleneck(chance, layers, hidden, norm_first=kind in first or site in first)
            for site in sites.get(kind, [])  # type: ignore[attr-defined]
        },
        {module: random_lora(chance, layers, *sizes.get(module, (hidden, hidden))) for module in modules},
        {
            site: Norm(torch.rand(layers, hidden) + 0.5, torch.randn(layers, hidden))
            for site in (SITES if kind in ("norms", "all") else [])
        },
        random_bottleneck(chance, 1, hidden) if kind in ("entrance", "all") else None,
    )


def random_artifact(chance: random.Random, root: RootFolder, kind: str) -> HplmArtifact:
    hidden, labels = root.geometry.hidden_size, chance.randint(2, 5)
    dense = {}
    if chance.random() < 0.5:
        dense = {"dense_weight": torch.randn(hidden, hidden) / hidden**0.5, "dense_bias": torch.randn(hidden)}
    head = Head(torch.randn(labels, hidden), torch.randn(labels), **dense, activation="tanh")
    names = tuple(f"label {number}" for number in range(labels))
    pooling = chance.choice(["cls", "mean"])
    adapters = random_adapters(chance, root.geometry, kind)
    return HplmArtifact("x/y", root.fingerprint, "classification", names, pooling, adapters, head)


def reference_logits(root: RootFolder, artifact: HplmArtifact, hidden: Tensor, num_layers: int | None = None) -> Tensor:
    """One row `[L, H]` of the lower half → its logits, after all layers or some."""
    layers = range(num_layers or root.geometry.num_upper_layers)
    states = _states(root.geometry, _weights(root), artifact.adapters, hidden, layers)
    return _answer(artifact.head, _pooled(artifact.pooling, states, None))


def reference_states(root: RootFolder, artifact: HplmArtifact, hidden: Tensor, layers: range) -> Tensor:
    """One row `[L, H]` as it comes to some layers → as it leaves them."""
    own = artifact.adapters if layers.start == 0 else replace(artifact.adapters, entrance=None)
    return _states(root.geometry, _weights(root), own, hidden, layers)


def reference_received(root: RootFolder, artifact: HplmArtifact, hidden: Tensor, layer: int) -> list[float]:
    """The attention that each token of a row receives in one layer, over its heads and tokens."""
    states = reference_states(root, artifact, hidden, range(layer))
    own = {name: tensor.float() for name, tensor in artifact.adapters.named().items()}
    queries, keys, _ = _queries_keys_values(_weights(root), own, layer, states)
    size, received = root.geometry.hidden_size // root.geometry.num_heads, [0.0] * len(states)
    for start in range(0, root.geometry.hidden_size, size):
        part = slice(start, start + size)
        for query in queries[:, part]:
            paid = [float((query @ key / size**0.5).exp()) for key in keys[:, part]]
            received = [before + each / sum(paid) for before, each in zip(received, paid, strict=True)]
    return received


def reference_answer(head: Head, pooling: str, states: Tensor, middle: int | None) -> Tensor:
    return _answer(head, _pooled(pooling, states, middle))


def reference_student_logits(
    students: StudentSet, artifact: HplmArtifact, hidden: Tensor, count: int, middle: int | None = None
) -> Tensor:
    """One row of the lower half → the sum of what its first students say, or what the last of them says in a chain."""
    own, weights, inputs = artifact.students, *_student_weights(students)
    assert own is not None
    said, states, is_chain = list[Tensor](), hidden, students.shape.wiring == "chained"
    for student in range(count):
        first = student * students.shape.layers
        layers = range(first, first + students.shape.layers)
        read = states if is_chain else hidden
        if f"{student}.weight" in inputs:
            read = read @ inputs[f"{student}.weight"].T + inputs[f"{student}.bias"]
        states = _states(students.geometry, weights, own.adapters, read, layers)
        said.append(_answer(own.heads[student], _pooled(artifact.pooling, states, middle)))
    return said[-1] if is_chain else torch.stack(said).sum(dim=0)


@lru_cache(maxsize=8)
def _weights(root: RootFolder) -> Weights:
    """Read a root's weights once for all rows that are compared."""
    return root.upper().state_dict()


@lru_cache(maxsize=8)
def _student_weights(students: StudentSet) -> tuple[Weights, Weights]:
    """The layers', and those of the maps into the width of narrow students."""
    return students.layers().state_dict(), students.inputs().state_dict()


def _states(
    geometry: RootGeometry, weights: Weights, adapters: AdapterSet, hidden: Tensor, layers: Iterable[int]
) -> Tensor:
    own: Weights = {name: tensor.float() for name, tensor in adapters.named().items()}
    if entrance := adapters.entrance:
        down, down_bias, up, up_bias = (own[f"bottleneck.entrance.{name}"][0] for name in _BOTTLENECK)
        hidden = hidden + _ACTIVATIONS[entrance.activation](hidden @ down.T + down_bias) @ up.T + up_bias
    for layer in layers:
        hidden = _layer(geometry, weights, adapters, own, layer, hidden)
    return hidden


def _pooled(pooling: str, states: Tensor, middle: int | None) -> Tensor:
    if pooling in ("cls", "none"):
        return states[0] if pooling == "cls" else states
    mean = states.sum(dim=0) / len(states)
    if pooling == "mean":
        return mean
    end = len(states) if middle is None else middle
    first = states[:end].sum(dim=0) / end
    second = states[end:].sum(dim=0) / max(1, len(states) - end)
    sizes = (first.norm().clamp(min=1e-12), second.norm().clamp(min=1e-12))
    return torch.cat([mean, (first - second).abs(), len(mean) * first / sizes[0] * second / sizes[1], first - second])


def _answer(head: Head, pooled: Tensor) -> Tensor:
    own = {name: tensor.float() for name, tensor in head.named().items()}
    if "dense_weight" in own:
        pooled = _ACTIVATIONS[head.activation](pooled @ own["dense_weight"].T + own["dense_bias"])
    return pooled @ own["weight"].T + own["bias"]


def _linear(weights: Weights, layer: int, name: str, states: Tensor) -> Tensor:
    return states @ weights[f"layers.{layer}.{name}.weight"].T + weights[f"layers.{layer}.{name}.bias"]


def _lora(own: Weights, layer: int, module: str, states: Tensor) -> Tensor | float:
    if f"lora.{module}.down" not in own:
        return 0.0
    return states @ (own[f"lora.{module}.up"][layer] @ own[f"lora.{module}.down"][layer]).T


def _queries_keys_values(weights: Weights, own: Weights, layer: int, hidden: Tensor) -> list[Tensor]:
    parts = _linear(weights, layer, "query_key_value", hidden).chunk(3, dim=-1)
    named = zip(("query", "key", "value"), parts, strict=True)
    return [part + _lora(own, layer, module, hidden) for module, part in named]


def _layer(
    geometry: RootGeometry, weights: Weights, adapters: AdapterSet, own: Weights, layer: int, hidden: Tensor
) -> Tensor:
    def linear(name: str, states: Tensor) -> Tensor:
        return _linear(weights, layer, name, states)

    def lora(module: str, states: Tensor) -> Tensor | float:
        return _lora(own, layer, module, states)

    def norm(site: str, states: Tensor) -> Tensor:
        shared = {"attention": "attention_norm", "output": "ffn_norm"}[site]
        weight, bias = (weights[f"layers.{layer}.{shared}.{name}"] for name in ("weight", "bias"))
        if f"norm.{site}.weight" in own:
            weight, bias = own[f"norm.{site}.weight"][layer], own[f"norm.{site}.bias"][layer]
        mean, variance = states.mean(dim=-1, keepdim=True), states.var(dim=-1, keepdim=True, unbiased=False)
        return (states - mean) / (variance + geometry.layer_norm_eps).sqrt() * weight + bias

    def residual_sum(site: str, states: Tensor, residual: Tensor) -> Tensor:
        part = adapters.bottlenecks.get(site)  # type: ignore[call-overload]
        if part is None:
            return norm(site, states + residual)
        seen = norm(site, states + residual) if part.norm_first else states
        down, down_bias, up, up_bias = (own[f"bottleneck.{site}.{name}"][layer] for name in _BOTTLENECK)
        change = _ACTIVATIONS[part.activation](seen @ down.T + down_bias) @ up.T + up_bias
        return norm(site, change + states + residual)

    query, key, value = _queries_keys_values(weights, own, layer, hidden)
    size = geometry.hidden_size // geometry.num_heads
    heads = [
        torch.softmax(q @ k.T / size**0.5, dim=-1) @ v
        for q, k, v in zip(query.split(size, 1), key.split(size, 1), value.split(size, 1), strict=True)
    ]
    context = torch.cat(heads, dim=1)
    attended = residual_sum(
        "attention", linear("attention_output", context) + lora("attention_output", context), hidden
    )
    inner = functional.gelu(linear("ffn_in", attended) + lora("ffn_in", attended))
    return residual_sum("output", linear("ffn_out", inner) + lora("ffn_out", inner), attended)
