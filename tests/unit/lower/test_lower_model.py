"""The Triton glue of `hplm_lower` beside a stand-in for Triton."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType

import pytest

from backends.errors import HplmError
from backends.home import HOME_VARIABLE, Home
from backends.lower.service import LowerService, TextRequest
from model_glue import arguments, model_module


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return model_module("hplm_lower", monkeypatch)


def test_a_defect_of_the_queue_ends_the_process_once_what_waits_is_told(
    module: ModuleType, tiny_home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[HplmError] = []
    told_at_end: list[int] = []
    ended = threading.Event()

    def end_process() -> None:
        told_at_end.append(len(told))
        ended.set()

    def fail(_: LowerService) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setenv(HOME_VARIABLE, str(tiny_home.path))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # set by the model, and only for this test
    monkeypatch.setattr(module, "end_process", end_process)
    model = module.TritonPythonModel()
    model.initialize(arguments("hplm_lower", tmp_path, {}))
    monkeypatch.setattr(LowerService, "forget_told_load", fail)
    assert model._queue.add(TextRequest([b"acme/topic"], [b"cat"], ""), told.append) is None
    assert ended.wait(30)
    model.finalize()
    assert told_at_end == [1]
