"""ONNX Runtime in fp32, since on x86 it has no products in bf16, and in int8 with dynamic ranges of activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kit.peers.bert import Bert, padded
from bench.kit.peers.runtime import Dtype, LoadedModel


@dataclass(frozen=True)
class OnnxRuntime:
    dtype: Dtype
    packages: Sequence[str] = ("onnx", "onnxruntime")

    @property
    def name(self) -> str:
        return f"ONNX Runtime {self.dtype}"

    def prepare(self, model: Bert, rows: Sequence[Tensor], folder: Path) -> Path:
        exported = _exported(model, rows, folder / "model.onnx")
        if self.dtype != "int8":
            return exported
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = folder / "int8.onnx"
        constants = {"MatMulConstBOnly": True}
        quantize_dynamic(exported, path, per_channel=True, weight_type=QuantType.QInt8, extra_options=constants)
        exported.unlink()
        return path

    def load(self, path: Path) -> LoadedModel:
        import onnxruntime

        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        # Else its threads keep spinning while another peer is measured.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def logits(hidden: Tensor, mask: Tensor) -> Tensor:
            return torch.from_numpy(session.run(None, {"hidden": hidden.numpy(), "mask": mask.numpy()})[0])

        return logits


def _exported(model: Bert, rows: Sequence[Tensor], path: Path) -> Path:
    hidden, mask = padded(rows[:2], max(map(len, rows[:2])), torch.float32)
    torch.onnx.export(
        model,
        (hidden, mask),
        path,
        input_names=["hidden", "mask"],
        output_names=["logits"],
        dynamic_axes={"hidden": {0: "rows", 1: "tokens"}, "mask": {0: "rows", 3: "tokens"}},
        opset_version=17,
        # The other exporter needs one more package and returns the same graph.
        dynamo=False,
    )
    return path
