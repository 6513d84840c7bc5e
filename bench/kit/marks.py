"""Weights that say whose they are: from an answer's scores one reads which publication computed it.

The adapters' last LayerNorm turns every state into the same vector, whatever was asked, and the head adds its own
number to what it reads there. So both the slot that computed an answer and its head show in the scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
import xxhash

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.head import Head
from backends.adapters.parts import Norm
from backends.home import Home
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.timeline import Asked
from builder.construct.hplm.hplms import publish_artifact

# All exact in bf16 and fp16, and their sums all different.
_LEVELS = 64
_ADAPTERS_STEP = 1 / 8
_HEAD_STEP = _ADAPTERS_STEP / _LEVELS
_TOLERANCE = _HEAD_STEP / 4


@dataclass(frozen=True)
class Mark:
    """What one version's adapters and its head give the first label more than any other."""

    in_adapters: float
    in_head: float

    @classmethod
    def of(cls, hplm: str, version: int) -> Mark:
        number = xxhash.xxh3_64_intdigest(f"{hplm}@{version}".encode())
        return cls(
            _ADAPTERS_STEP * (number % _LEVELS - _LEVELS // 2), _HEAD_STEP * ((number // _LEVELS + version) % _LEVELS)
        )

    def fits(self, scores: Mapping[str, float]) -> bool:
        """Scores are probabilities, the first label's first."""
        first, *others = (math.log(max(score, math.ulp(0.0))) for score in scores.values())
        return all(abs(first - other - self.in_adapters - self.in_head) < _TOLERANCE for other in others)

    def put_into(self, artifact: HplmArtifact, num_layers: int) -> HplmArtifact:
        """Only of classifications; the other parts stay, so that slots are filled and computed as ever."""
        hidden_size = artifact.head.hidden_size
        norm = Norm(torch.zeros(num_layers, hidden_size), torch.zeros(num_layers, hidden_size))
        norm.bias[:, 0] = self.in_adapters
        weight, bias = torch.zeros(len(artifact.labels), hidden_size), torch.zeros(len(artifact.labels))
        weight[0, 0], bias[0] = 1.0, self.in_head
        parts = {**artifact.adapters.parts(), "norm.output": norm}
        return replace(artifact, adapters=AdapterSet.from_parts(parts), head=Head(weight, bias))


def publish_marked(home: Home, registry: Registry, hplm: str, model: HplmEntry, domain: DomainEntry) -> HplmEntry:
    """Publish a copy of `model` as the next version of `hplm`, marked where its answers can show it."""
    root = RootFolder(home.root(model.domain.root))
    artifact = replace(read_artifact(home.path / model.folder, root.fingerprint), hplm=hplm)
    if model.task == "classification":
        mark = Mark.of(hplm, registry.next_hplm_version(hplm))
        artifact = mark.put_into(artifact, root.geometry.num_upper_layers)
    return publish_artifact(home, registry, artifact, domain, model.metrics)


def mark_all(home: Home, registry: Registry) -> list[HplmEntry]:
    """A marked version of every live hPLM."""
    return [publish_marked(home, registry, entry.id, entry, entry.domain) for entry in registry.hplms()]


def wrong_weights(asked: Iterable[Asked], unmarked: Collection[tuple[str, int]] = ()) -> int:
    """How many answers were computed by others than the version that they carry."""
    return sum(
        one.version is not None
        and one.scores is not None
        and (one.hplm, one.version) not in unmarked
        and not Mark.of(one.hplm, one.version).fits(one.scores)
        for one in asked
    )
