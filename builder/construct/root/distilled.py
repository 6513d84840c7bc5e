"""The parts of a root that distillation taught, in a file that travels without the pretrained model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from backends.errors import CorruptFileError, FingerprintMismatchError, InvalidArgumentError
from backends.fields import Fields
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder, float16_state
from backends.storage import write_tensors
from builder.construct.root.conversion import RootParts
from builder.settings.root import TRAINED_PARTS, WORD_EMBEDDINGS

_ALWAYS_TRAINED = ("lower", "aggregation")


@dataclass(frozen=True)
class DistilledWeights:
    """A file's content: weights by the names of a root's parts, the fidelity that was measured, and what it took."""

    state: dict[str, Tensor]
    geometry: RootGeometry
    weights_checksum: str
    fidelity: dict[str, Any]
    seconds: int | None

    @classmethod
    def read(cls, path: Path) -> DistilledWeights:
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
            state = {name: tensor.float() for name, tensor in load_file(path).items()}
            geometry = RootGeometry.read(Fields(json.loads(metadata["geometry"]), f"the geometry of {path}"))
            fidelity, seconds = json.loads(metadata["fidelity"]), json.loads(metadata.get("seconds", "null"))
            return cls(state, geometry, metadata["weights_checksum"], fidelity, seconds)
        except Exception as error:  # the library raises its own type for every kind of damage
            raise CorruptFileError(f"{path} does not hold distilled weights: {error}") from error

    def load_into(self, parts: RootParts) -> set[str]:
        """Take the weights over, and say which parts they are."""
        trained: set[str] = set()
        for name, part in parts.modules().items():
            own = {key.removeprefix(f"{name}."): t for key, t in self.state.items() if key.startswith(f"{name}.")}
            if own:
                part.load_state_dict(own, strict=name != "lower")
                trained.add(name)
            if any(WORD_EMBEDDINGS in key for key in own):
                trained.add(WORD_EMBEDDINGS)
        return trained


def export_distilled(root: RootFolder, path: Path) -> None:
    """Write what of a root differs from its pretrained model."""
    trained = root.manifest.origin.get(TRAINED_PARTS, _ALWAYS_TRAINED)
    parts = {"lower": root.lower, "aggregation": root.aggregation, "upper": root.upper}
    state = {f"{name}.{key}": t for name in parts if name in trained for key, t in float16_state(parts[name]()).items()}
    if WORD_EMBEDDINGS not in trained:
        state = {key: tensor for key, tensor in state.items() if WORD_EMBEDDINGS not in key}
    metadata = {
        "weights_checksum": root.manifest.origin["weights_checksum"],
        "geometry": json.dumps(root.geometry.to_json()),
        "fidelity": json.dumps(root.manifest.fidelity),
        "seconds": json.dumps(seconds_in_all(root.manifest.origin)),
    }
    write_tensors(path, state, metadata)


def seconds_in_all(origin: Mapping[str, Any]) -> int | None:
    """The seconds of a root's distillation and of the weights that it went on from; None where they are unknown."""
    distillation = origin.get("distillation", {})
    before = distillation.get("seconds_before", 0)
    return None if before is None else int(distillation.get("seconds", 0)) + before


def fitting_weights(parts: RootParts, path: Path, weights_checksum: str) -> DistilledWeights:
    """Read what `export_distilled` wrote for the same model."""
    weights = DistilledWeights.read(require_distilled(path))
    if weights.weights_checksum != weights_checksum or weights.geometry != parts.geometry:
        raise FingerprintMismatchError(f"{path} was distilled from another pretrained model or with other sizes")
    return weights


def num_sinks(path: Path) -> int:
    return DistilledWeights.read(require_distilled(path)).geometry.num_sinks


def require_distilled(path: Path) -> Path:
    if not path.is_file():
        raise InvalidArgumentError(f"distilled weights {path} do not exist")
    return path
