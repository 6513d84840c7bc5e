"""The slow, obvious forward pass of one hPLM: fp32, one text at a time, no table, no packing, no Triton.

It reads the weight files itself and shares no arithmetic with what it checks. Which fragments a table holds is all
that it takes from the tables, as a plain set of keys: a fragment that none holds is shortened, as the server must.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from backends.home import Home
from backends.plot.header import Store
from backends.plot.keys import ID_BITS
from backends.plot.table import Table
from backends.registry.entries import HplmEntry

Weights = dict[str, Tensor]
Fragment = tuple[int, int, int]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda states: functional.gelu(states, approximate="tanh"),
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
_BOTTLENECK = ("down_weight", "down_bias", "up_weight", "up_bias")
_FIRST_FORMAT = [{"name": "bottleneck.attention", "activation": "relu", "norm_first": False}]


@dataclass(frozen=True)
class _Step:
    """One table of a chain: what it holds, and the lower layers that it was made with."""

    keys: frozenset[int]
    lower: Weights


class ReferenceHplm:
    """One hPLM as a function from text to logits."""

    def __init__(self, home: Home, entry: HplmEntry) -> None:
        root = home.root(entry.domain.root)
        manifest = json.loads((root / "manifest.json").read_text())
        self._geometry = manifest["geometry"]
        own = json.loads((home.path / entry.folder / "manifest.json").read_text())
        self._pooling, self._head_activation = own["pooling"], own.get("head", {}).get("activation")
        lower, self._aggregation, self._upper = (
            _weights(root / f"{part}.safetensors") for part in ("lower", "aggregation", "upper")
        )
        self._own = _own_weights(home.path / entry.folder, is_turned=own["format_version"] > 2)
        self._parts = {part["name"]: part for part in own.get("parts", _FIRST_FORMAT)}
        self._tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._geometry["max_tokens"])
        self._tokenizer.encode_special_tokens = True
        self._steps = _steps([home.path / folder for folder in entry.domain.folders], manifest["fingerprint"], lower)
        self._computed: dict[Fragment, Tensor] = {}

    @torch.no_grad()
    def logits(self, text: str, pair: str | None = None, shorten: bool = False) -> Tensor:
        """The logits of a text, or of each of its tokens; with `shorten`, as `--missing fallback` answers."""
        encoding = self._tokenizer.encode(text, pair)
        ids = encoding.ids
        fragments = [self._resolved(fragment) if shorten else fragment for fragment in _fragments(ids)]
        gated = [self._gated(fragment) for fragment in fragments]  # each (3, H)
        hidden = torch.stack([_summed(gated, i) for i in range(len(ids))])
        hidden = hidden + self._aggregation["position_embeddings.weight"][: len(ids)]
        hidden = hidden + self._aggregation["type_embeddings.weight"][encoding.type_ids]
        hidden = self._norm(hidden, self._aggregation, "norm")
        if entrance := self._parts.get("bottleneck.entrance"):
            down, down_bias, up, up_bias = (self._own[f"bottleneck.entrance.{name}"][0] for name in _BOTTLENECK)
            hidden = hidden + _ACTIVATIONS[entrance["activation"]](hidden @ down.T + down_bias) @ up.T + up_bias
        for layer in range(self._geometry["num_upper_layers"]):
            hidden = self._layer(hidden, self._upper, f"layers.{layer}", layer)
        pooled = _pooled(hidden, self._pooling, encoding.sequence_ids)
        if "head.dense_weight" in self._own:
            dense = pooled @ self._own["head.dense_weight"].T + self._own["head.dense_bias"]
            pooled = _ACTIVATIONS[self._head_activation](dense)
        return pooled @ self._own["head.weight"].T + self._own["head.bias"]

    def words(self, text: str) -> list[tuple[int, int, int]]:
        """Return each word's first token, and where the word begins and ends in the text."""
        found: dict[int, tuple[int, int, int]] = {}
        encoding = self._tokenizer.encode(text)
        for token, (word, (start, end)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if word is not None:
                found[word] = (*found.get(word, (token, start))[:2], end)
        return list(found.values())

    def _resolved(self, fragment: Fragment) -> Fragment:
        left, centre, right = fragment
        for shorter in ((left, centre, right), (0, centre, right)):
            if any(_key(shorter) in step.keys for step in self._steps):
                return shorter
        return (0, centre, 0)

    def _gated(self, fragment: Fragment) -> Tensor:
        if fragment not in self._computed:
            self._computed[fragment] = self._compute(fragment)
        return self._computed[fragment]

    def _layers(self, fragment: Fragment) -> Weights:
        """Read the nearest table that holds it; for what none holds the domain's own, of uni-grams the root's."""
        if not fragment[0] and not fragment[2]:
            return self._steps[-1].lower
        return next((step for step in self._steps if _key(fragment) in step.keys), self._steps[0]).lower

    def _compute(self, fragment: Fragment) -> Tensor:
        """The lower layers over one fragment, its empty slots left out."""
        lower = self._layers(fragment)
        slots = [slot for slot in range(3) if fragment[slot]]
        ids = torch.tensor([fragment[slot] for slot in slots])
        hidden = lower["word_embeddings.weight"][ids] + lower["slot_embeddings.weight"][slots]
        hidden = self._norm(hidden, lower, "embedding_norm")
        for layer in range(self._geometry["num_lower_layers"]):
            hidden = self._layer(hidden, lower, f"layers.{layer}", None)
        gate = torch.sigmoid(hidden @ lower["gate.weight"][0] + lower["gate.bias"])
        gated = torch.zeros(3, hidden.shape[1])
        gated[slots] = hidden * gate[:, None]
        return gated

    def _layer(self, hidden: Tensor, weights: Weights, name: str, adapted: int | None) -> Tensor:
        """One layer; `adapted` is its number among the upper ones."""
        fused = self._linear(hidden, weights, f"{name}.query_key_value").chunk(3, dim=-1)
        query, key, value = (
            states + self._lora(module, adapted, hidden)
            for states, module in zip(fused, ("query", "key", "value"), strict=True)
        )
        width = hidden.shape[1] // self._geometry["num_heads"]
        if adapted is None and "sinks" in weights:  # keys and values that every slot of a fragment sees too
            sink_key, sink_value = weights["sinks"][int(name.rpartition(".")[2])]
            key, value = torch.cat([sink_key, key]), torch.cat([sink_value, value])
        heads = []
        for start in range(0, hidden.shape[1], width):
            q, k, v = (states[:, start : start + width] for states in (query, key, value))
            heads.append(torch.softmax(q @ k.T / width**0.5, dim=-1) @ v)
        context = torch.cat(heads, dim=-1)
        attended = self._linear(context, weights, f"{name}.attention_output")
        attended = attended + self._lora("attention_output", adapted, context)
        hidden = self._residual_sum("attention", attended, hidden, weights, f"{name}.attention_norm", adapted)
        inner = self._linear(hidden, weights, f"{name}.ffn_in") + self._lora("ffn_in", adapted, hidden)
        inner = _ACTIVATIONS[self._geometry["activation"]](inner)
        out = self._linear(inner, weights, f"{name}.ffn_out") + self._lora("ffn_out", adapted, inner)
        return self._residual_sum("output", out, hidden, weights, f"{name}.ffn_norm", adapted)

    def _lora(self, module: str, adapted: int | None, states: Tensor) -> Tensor:
        if adapted is None or f"lora.{module}" not in self._parts:
            return torch.zeros(())
        down, up = (self._own[f"lora.{module}.{name}"][adapted] for name in ("down", "up"))
        return states @ down.T @ up.T

    def _residual_sum(
        self, site: str, states: Tensor, residual: Tensor, weights: Weights, norm: str, adapted: int | None
    ) -> Tensor:
        if adapted is not None and f"norm.{site}" in self._parts:
            weights = {f"{norm}.{name}": self._own[f"norm.{site}.{name}"][adapted] for name in ("weight", "bias")}
        total = states + residual
        if adapted is not None and (part := self._parts.get(f"bottleneck.{site}")):
            down, down_bias, up, up_bias = (self._own[f"bottleneck.{site}.{name}"][adapted] for name in _BOTTLENECK)
            seen = self._norm(total, weights, norm) if part["norm_first"] else states
            total = total + _ACTIVATIONS[part["activation"]](seen @ down.T + down_bias) @ up.T + up_bias
        return self._norm(total, weights, norm)

    def _linear(self, hidden: Tensor, weights: Weights, name: str) -> Tensor:
        return hidden @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def _norm(self, hidden: Tensor, weights: Weights, name: str) -> Tensor:
        centred = hidden - hidden.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        normal = centred / torch.sqrt(variance + self._geometry["layer_norm_eps"])
        return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _pooled(hidden: Tensor, pooling: str, halves: list[int | None]) -> Tensor:
    """Special tokens belong to the half in front of them, the first one to the first half."""
    if pooling != "halves":
        return {"cls": hidden[0], "mean": hidden.mean(dim=0), "none": hidden}[pooling]
    middle = halves.index(1)
    first, second = hidden[:middle].mean(dim=0), hidden[middle:].mean(dim=0)
    alike = len(first) * (first / first.norm()) * (second / second.norm())
    return torch.cat([hidden.mean(dim=0), (first - second).abs(), alike, first - second])


def _weights(path: Path) -> Weights:
    return {name: tensor.float() for name, tensor in load_file(path).items()}


def _own_weights(folder: Path, is_turned: bool) -> Weights:
    """An hPLM's weights; the bank's first format knew one part and called it otherwise, the third turns matrices."""
    weights = _weights(folder / "weights.safetensors")
    if is_turned:
        weights = {name: tensor.mT if tensor.ndim == 3 else tensor for name, tensor in weights.items()}
    return {re.sub(r"^adapter\.", "bottleneck.attention.", name): tensor for name, tensor in weights.items()}


def _fragments(ids: list[int]) -> list[Fragment]:
    padded = [0, *ids, 0]
    return [(padded[i], padded[i + 1], padded[i + 2]) for i in range(len(ids))]


def _summed(gated: list[Tensor], i: int) -> Tensor:
    total = gated[i][1].clone()
    if i + 1 < len(gated):
        total += gated[i + 1][0]
    if i > 0:
        total += gated[i - 1][2]
    return total


def _key(fragment: Fragment) -> int:
    left, centre, right = fragment
    return left << 2 * ID_BITS | centre << ID_BITS | right


def _steps(folders: Sequence[Path], fingerprint: str, root_lower: Weights) -> list[_Step]:
    """From the domain to the root; a domain without lower layers of its own has its parent's."""
    steps: list[_Step] = []
    lower = root_lower
    for folder in reversed(folders):
        own = folder / "lower.safetensors"
        lower = {**root_lower, **_weights(own)} if own.exists() else lower
        with Table.open(folder, fingerprint) as table:
            stores = [store for store in (Store.TRI, Store.BI) if store in table]
            steps.insert(0, _Step(frozenset(key for store in stores for key in table.keys(store).tolist()), lower))
    return steps
