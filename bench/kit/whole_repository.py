"""The Triton model that serves the baseline in `bench.kit.whole_models`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.kit.model_code import with_bench
from builder.export.config import DynamicBatching, Instances, ModelDescription, Tensor, to_text

_CODE = Path(__file__).parent.parent / "triton_models" / "whole_models" / "1" / "model.py"


def render_whole_models(folder: Path, parameters: Mapping[str, str]) -> None:
    """`folder` is the model's in a repository, and named as it; it speaks the ensemble's wire contract."""
    strings = [Tensor(name, "STRING", (1,)) for name in ("MODEL", "TEXT", "RESULT")]
    model = ModelDescription(
        name=folder.name,
        max_batch_size=64,
        inputs=(strings[0], strings[1]),
        outputs=(strings[2],),
        instances=Instances("CPU", 1),
        batching=DynamicBatching(),
        parameters=parameters,
    )
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(to_text(model), encoding="utf-8")
    (folder / "1" / "model.py").write_text(with_bench(_CODE.read_text(encoding="utf-8")), encoding="utf-8")
