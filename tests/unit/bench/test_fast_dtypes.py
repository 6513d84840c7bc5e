"""The dtypes that benches of the bare engine measure, by its device."""

from __future__ import annotations

import pytest
import torch

from bench.kit import bare
from bench.kit.bare import fast_dtypes


def test_int8_is_measured_on_processors_that_are_fast_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "fast_float_dtype", lambda device: "bf16" if device.type == "cuda" else "fp32")
    monkeypatch.setattr(bare, "missing_for", lambda *_: None)
    assert fast_dtypes() == ("fp32", "int8")
    assert fast_dtypes(torch.device("cuda")) == ("bf16",)
    monkeypatch.setattr(bare, "missing_for", lambda *_: "no instructions")
    assert fast_dtypes() == ("fp32",)
