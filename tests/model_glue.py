"""The code of a Triton model beside a stand-in for the module that only Triton has."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from backends import collection

_MODELS = Path(__file__).parents[1] / "model_repository"


def model_module(model: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the code of a model; it leaves the environment and the garbage collector of this process alone."""
    for name in ("OMP_WAIT_POLICY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.setenv(name, "1")  # what the model sets in its environment stays out of this one
    monkeypatch.setattr(collection, "pause_collection", lambda: None)
    triton = ModuleType("triton_python_backend_utils")
    vars(triton).update(
        MetricFamily=MagicMock(),
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        Tensor=lambda name, array: (name, array),
        InferenceResponse=lambda tensors=(), error=None: SimpleNamespace(tensors=tensors, error=error),
        TritonError=MagicMock(),
    )
    monkeypatch.setitem(sys.modules, triton.__name__, triton)
    spec = importlib.util.spec_from_file_location(f"{model}_model", _MODELS / model / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.setattr(loaded, "exclude_loaded_objects", lambda: None)
    return loaded


def arguments(model: str, folder: Path, parameters: Mapping[str, str]) -> dict[str, str]:
    """Make what Triton hands to `initialize`."""
    config = {"max_batch_size": 64, "parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    return {
        "model_config": json.dumps(config),
        "model_repository": str(folder / model),
        "model_version": "1",
        "model_instance_name": f"{model}_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }
