"""Folders of adapters that PEFT and AdapterHub have saved, as far as the parts of a root's layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backends.home import Home
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.target import Target
from builder.importing.base import Base, require_same_base
from builder.importing.folder import read_folder
from builder.importing.labels import require_labels
from builder.importing.modules import require_upper, stack_modules

_RANK = 2


class Imports(Target):
    """Configurations and weights with damage, in safetensors and in PyTorch's own format."""

    name = "imports"
    cases = 20_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        registry = Registry.open(home)
        self._manifest = RootFolder(home.root(registry.roots()[0].name)).manifest
        self._geometry = self._manifest.geometry
        registry.close()
        self._folders = [
            BadFolder(folder, folder)
            for folder in (
                _write(scratch / "peft", *peft(self._geometry), "adapter_model.safetensors"),
                _write(scratch / "peft-bin", *peft(self._geometry), "adapter_model.bin"),
                _with_head(_write(scratch / "hub", *adapterhub(self._geometry), "adapter.safetensors"), self._geometry),
                _write(scratch / "hub-bin", *adapterhub(self._geometry), "pytorch_adapter.bin"),
            )
        ]

    def attempt(self, draw: Draw) -> None:
        with draw.choice(self._folders).damaged(draw) as folder:
            found = read_folder(folder)
            require_upper(found.modules, self._geometry, found.upper_only)
            stack_modules(found.modules, self._geometry).require_finite("the adapter")
            if draw.happens(0.3):
                require_same_base(found.base, self._manifest, Base())
            if found.head is not None:
                require_labels(found.head, None)


def peft(geometry: RootGeometry) -> tuple[dict[str, Any], dict[str, Tensor]]:
    hidden, first = geometry.hidden_size, geometry.num_lower_layers
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "r": _RANK,
        "lora_alpha": 4,
        "bias": "none",
        "rank_pattern": {},
        "alpha_pattern": {"value": 3, r"layer\.\d+\.x": 1},
        "target_modules": ["query", "value"],
        "base_model_name_or_path": "tiny",
        "peft_version": "0.18.0",
    }
    tensors: dict[str, Tensor] = {}
    for module in ("query", "value"):
        name = f"base_model.model.bert.encoder.layer.{first}.attention.self.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.ones(_RANK, hidden)
        tensors[f"{name}.lora_B.weight"] = torch.ones(hidden, _RANK)
    head = "base_model.model.classifier"
    return config, tensors | {f"{head}.weight": torch.zeros(3, hidden), f"{head}.bias": torch.zeros(3)}


def adapterhub(geometry: RootGeometry) -> tuple[dict[str, Any], dict[str, Tensor]]:
    hidden, first, width = geometry.hidden_size, geometry.num_lower_layers, 4
    config = {
        "config": {"non_linearity": "relu", "reduction_factor": 16, "original_ln_before": True, "scaling": 1.0},
        "name": "mine",
        "model_name": "tiny",
        "model_type": "bert",
        "version": "1.2.0",
    }
    site = f"bert.encoder.layer.{first}.output.adapters.mine"
    tensors = {
        f"{site}.adapter_down.0.weight": torch.ones(width, hidden),
        f"{site}.adapter_down.0.bias": torch.zeros(width),
        f"{site}.adapter_up.weight": torch.ones(hidden, width),
        f"{site}.adapter_up.bias": torch.zeros(hidden),
    }
    return config, tensors


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], weights: str) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    _save(tensors, folder / weights)
    return folder


def _with_head(folder: Path, geometry: RootGeometry) -> Path:
    labels = {"label2id": {"bad": 0, "good": 1, "other": 2}}
    config = {"head_type": "classification", "layers": 2, "activation_function": "tanh", "use_pooler": False, **labels}
    (folder / "head_config.json").write_text(json.dumps({"config": config, "name": "mine", "model_type": "bert"}))
    hidden = geometry.hidden_size
    tensors = {"1.weight": torch.ones(hidden, hidden), "1.bias": torch.zeros(hidden)}
    tensors |= {"4.weight": torch.ones(3, hidden), "4.bias": torch.zeros(3)}
    _save({f"heads.mine.{name}": tensor for name, tensor in tensors.items()}, folder / "model_head.safetensors")
    return folder


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".bin":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
