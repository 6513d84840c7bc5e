"""PyTorch in bf16 or fp32, eager or compiled; a model's weights are one file that is read into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from backends.root.geometry import RootGeometry
from bench.kit.peers.bert import Bert
from bench.kit.peers.runtime import Dtype, LoadedModel

_STATES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class PyTorch:
    geometry: RootGeometry
    dtype: Dtype
    is_compiled: bool = False
    packages: Sequence[str] = ()

    @property
    def name(self) -> str:
        return f"PyTorch {'compiled' if self.is_compiled else 'eager'} {self.dtype}"

    def prepare(self, model: Bert, rows: Sequence[Tensor], folder: Path) -> Path:
        path = folder / "model.pt"
        torch.save({name: tensor.to(_STATES[self.dtype]) for name, tensor in model.state_dict().items()}, path)
        return path

    def load(self, path: Path) -> LoadedModel:
        with torch.device("meta"):
            model = Bert(self.geometry).eval().requires_grad_(False)
        model.load_state_dict(torch.load(path, weights_only=True), assign=True)
        run, dtype = _compiled_layer() if self.is_compiled else _layer, _STATES[self.dtype]

        @torch.inference_mode()
        def logits(hidden: Tensor, mask: Tensor) -> Tensor:
            states, mask = hidden.to(dtype), mask.to(dtype)
            for layer in model.layers:
                states = run(layer, states, mask)
            found: Tensor = model.head(states[:, 0])
            return found.float()

        return logits


def _layer(layer: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    out: Tensor = layer(hidden, mask)
    return out


@cache
def _compiled_layer() -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """All layers of all models have one compiled form: their weights are its inputs."""
    return torch.compile(_layer, dynamic=True)
