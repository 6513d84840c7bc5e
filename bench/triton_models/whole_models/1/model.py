"""Triton glue of the baseline in `bench.kit.whole_models`: the wire contract of the ensemble, whole models inside."""

import json
from pathlib import Path

from backends.openmp import limit_spinning

limit_spinning()

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.lower.model import LowerModel
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.wire import MODEL, RESULT, TEXT
from bench.kit.whole_models import WholeModels


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        settings = ModelSettings.from_triton(args)
        root = settings.text("root", "")
        registry = Registry.open(settings.home)
        self._lower = LowerModel.open(settings.home, registry.domain(root, root))
        registry.close()
        geometry = RootFolder(settings.home.root(root)).geometry
        folder = Path(settings.text("models", ""))
        self._models = WholeModels(
            folder,
            geometry,
            settings.number("resident", 1),
            cold=settings.flag("cold", False),
            quantised=settings.flag("quantised", False),
        )

    def execute(self, requests: list) -> list:
        names = [_strings(request, MODEL) for request in requests]
        texts = [text for request in requests for text in _strings(request, TEXT)]
        encoded = self._lower.encode(texts)
        rows = [torch.from_numpy(row) for row in encoded.rows]
        tenants = [name.split("/")[0] for of_request in names for name in of_request]
        found = iter(torch.stack(self._models.logits(tenants, rows)).softmax(dim=-1).tolist())
        return [_response(of_request, [next(found) for _ in of_request]) for of_request in names]


def _strings(request: "pb_utils.InferenceRequest", name: str) -> list[str]:
    return [value.decode() for value in pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)]


def _response(names: list[str], scores: list[list[float]]) -> "pb_utils.InferenceResponse":
    rows = [_answer(name, own) for name, own in zip(names, scores, strict=True)]
    result = np.array(rows, dtype=np.object_).reshape(-1, 1)
    return pb_utils.InferenceResponse([pb_utils.Tensor(RESULT, result)])


def _answer(name: str, scores: list[float]) -> bytes:
    """As the ensemble answers for a task of classification."""
    best = max(range(len(scores)), key=scores.__getitem__)
    named = {f"label{number}": score for number, score in enumerate(scores)}
    answer = {"hplm": name, "version": 1, "task": "classification", "label": f"label{best}", "score": scores[best]}
    return json.dumps({**answer, "scores": named}).encode()
