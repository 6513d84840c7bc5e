"""OpenVINO in bf16 or fp32, or in int8 as its own compression framework quantises a transformer.

Whatever its CPU plugin loads faster is the file: in int8 the compiled form, else the model.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.engine.precision import fast_float_dtype
from bench.kit.peers.bert import Bert, padded
from bench.kit.peers.runtime import Dtype, LoadedModel

_CALIBRATION_ROWS = 8
_DEVICE = "CPU"
_HINTS = {"fp32": "f32", "bf16": "bf16"}
"""What layers outside int8 compute in."""


@dataclass(frozen=True)
class OpenVino:
    dtype: Dtype

    @property
    def name(self) -> str:
        return f"OpenVINO {self.dtype}"

    @property
    def packages(self) -> Sequence[str]:
        return ("openvino", "nncf") if self.dtype == "int8" else ("openvino",)

    def prepare(self, model: Bert, rows: Sequence[Tensor], folder: Path) -> Path:
        import openvino

        hidden, mask = padded(rows[:2], max(map(len, rows[:2])), torch.float32)
        size = hidden.shape[-1]
        shapes = [openvino.PartialShape([-1, -1, size]), openvino.PartialShape([-1, 1, 1, -1])]
        graph = openvino.convert_model(model, example_input=(hidden, mask), input=shapes)
        if self.dtype != "int8":
            path = folder / "model.xml"
            openvino.save_model(graph, path, compress_to_fp16=True)
            return path
        path = folder / "model.blob"
        compiled = _core().compile_model(_quantised(graph, rows), _DEVICE, _settings())
        content = compiled.export_model()
        path.write_bytes(content.getvalue() if isinstance(content, io.BytesIO) else content)
        return path

    def load(self, path: Path) -> LoadedModel:
        if self.dtype == "int8":
            compiled = _core().import_model(path.read_bytes(), _DEVICE, _settings())
        else:
            compiled = _core().compile_model(_core().read_model(path), _DEVICE, _settings())
        request = compiled.create_infer_request()

        def logits(hidden: Tensor, mask: Tensor) -> Tensor:
            return torch.from_numpy(request.infer([hidden.numpy(), mask.numpy()])[0].copy())

        return logits


def _quantised(graph: Any, rows: Sequence[Tensor]) -> Any:
    import nncf

    batches = [tuple(part.numpy() for part in padded([row], len(row), torch.float32)) for row in rows]
    samples = nncf.Dataset(batches[:_CALIBRATION_ROWS])
    return nncf.quantize(graph, samples, model_type=nncf.ModelType.TRANSFORMER, subset_size=_CALIBRATION_ROWS)


@cache
def _core() -> Any:
    import openvino

    core = openvino.Core()
    # Tenants' files are read into memory, as they would be if each were another.
    core.set_property({"ENABLE_MMAP": False})
    return core


def _settings() -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": _HINTS[fast_float_dtype(torch.device("cpu"))],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
    }
