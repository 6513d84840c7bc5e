"""The slow, obvious forward pass of one hPLM: fp32, one text at a time, no table, no packing, no Triton.

It reads the weight files itself and shares no arithmetic with what it checks. Which fragments a table holds is all
that it takes from the tables, as a plain set of keys: a fragment that none holds is shortened, as the server must.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from backends.home import Home
from backends.plot.header import Store
from backends.plot.keys import unpack
from backends.plot.table import Table
from backends.registry.entries import HplmEntry

Weights = dict[str, Tensor]
Fragment = tuple[int, int, int]


class ReferenceHplm:
    """One hPLM as a function from text to logits."""

    def __init__(self, home: Home, entry: HplmEntry) -> None:
        root = home.root(entry.domain.root)
        manifest = json.loads((root / "manifest.json").read_text())
        self._geometry = manifest["geometry"]
        self._pooling = json.loads((home.path / entry.folder / "manifest.json").read_text())["pooling"]
        self._lower, self._aggregation, self._upper = (
            _weights(root / f"{part}.safetensors") for part in ("lower", "aggregation", "upper")
        )
        self._own = _weights(home.path / entry.folder / "weights.safetensors")
        self._tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._geometry["max_tokens"])
        self._tokenizer.encode_special_tokens = True
        self._known = _known_fragments(home, entry, manifest["fingerprint"])
        self._computed: dict[Fragment, Tensor] = {}

    @torch.no_grad()
    def logits(self, text: str, shorten: bool = True) -> Tensor:
        """The logits of a text; without `shorten`, as if some table held every tri-gram."""
        ids = self._tokenizer.encode(text).ids
        fragments = [self._resolved(fragment) if shorten else fragment for fragment in _fragments(ids)]
        gated = [self._gated(fragment) for fragment in fragments]  # each (3, H)
        hidden = torch.stack([_summed(gated, i) for i in range(len(ids))])
        hidden = hidden + self._aggregation["position_embeddings.weight"][: len(ids)]
        hidden = hidden + self._aggregation["type_embeddings.weight"][0]
        hidden = self._norm(hidden, self._aggregation, "norm")
        for layer in range(self._geometry["num_upper_layers"]):
            hidden = self._layer(hidden, self._upper, f"layers.{layer}", layer)
        pooled = hidden[0] if self._pooling == "cls" else hidden.mean(dim=0)
        return self._own["head.weight"] @ pooled + self._own["head.bias"]

    def _resolved(self, fragment: Fragment) -> Fragment:
        left, centre, right = fragment
        for shorter in ((left, centre, right), (0, centre, right)):
            if shorter in self._known:
                return shorter
        return (0, centre, 0)

    def _gated(self, fragment: Fragment) -> Tensor:
        if fragment not in self._computed:
            self._computed[fragment] = self._compute(fragment)
        return self._computed[fragment]

    def _compute(self, fragment: Fragment) -> Tensor:
        """The lower layers over one fragment, its empty slots left out."""
        slots = [slot for slot in range(3) if fragment[slot]]
        ids = torch.tensor([fragment[slot] for slot in slots])
        hidden = self._lower["word_embeddings.weight"][ids] + self._lower["slot_embeddings.weight"][slots]
        hidden = self._norm(hidden, self._lower, "embedding_norm")
        for layer in range(self._geometry["num_lower_layers"]):
            hidden = self._layer(hidden, self._lower, f"layers.{layer}", None)
        gate = torch.sigmoid(hidden @ self._lower["gate.weight"][0] + self._lower["gate.bias"])
        gated = torch.zeros(3, hidden.shape[1])
        gated[slots] = hidden * gate[:, None]
        return gated

    def _layer(self, hidden: Tensor, weights: Weights, name: str, adapter: int | None) -> Tensor:
        query, key, value = self._linear(hidden, weights, f"{name}.query_key_value").chunk(3, dim=-1)
        width = hidden.shape[1] // self._geometry["num_heads"]
        heads = []
        for start in range(0, hidden.shape[1], width):
            q, k, v = (states[:, start : start + width] for states in (query, key, value))
            heads.append(torch.softmax(q @ k.T / width**0.5, dim=-1) @ v)
        attended = self._linear(torch.cat(heads, dim=-1), weights, f"{name}.attention_output")
        if adapter is not None:
            inner = attended @ self._own["adapter.down_weight"][adapter].T + self._own["adapter.down_bias"][adapter]
            up = torch.relu(inner) @ self._own["adapter.up_weight"][adapter].T + self._own["adapter.up_bias"][adapter]
            attended = attended + up
        hidden = self._norm(attended + hidden, weights, f"{name}.attention_norm")
        inner = functional.gelu(self._linear(hidden, weights, f"{name}.ffn_in"))
        return self._norm(self._linear(inner, weights, f"{name}.ffn_out") + hidden, weights, f"{name}.ffn_norm")

    def _linear(self, hidden: Tensor, weights: Weights, name: str) -> Tensor:
        return hidden @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def _norm(self, hidden: Tensor, weights: Weights, name: str) -> Tensor:
        centred = hidden - hidden.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        normal = centred / torch.sqrt(variance + self._geometry["layer_norm_eps"])
        return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _weights(path: Path) -> Weights:
    return {name: tensor.float() for name, tensor in load_file(path).items()}


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


def _known_fragments(home: Home, entry: HplmEntry, fingerprint: str) -> set[Fragment]:
    known: set[Fragment] = set()
    for folder in entry.domain.folders:
        with Table.open(home.path / folder, fingerprint) as table:
            for store in (Store.TRI, Store.BI):
                if store in table:
                    known |= {(a, b, c) for a, b, c in unpack(table.keys(store)).tolist()}
    return known
