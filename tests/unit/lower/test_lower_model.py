"""The Triton glue of `hplm_lower` beside a stand-in for Triton."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.errors import HplmError
from backends.home import HOME_VARIABLE, Home
from backends.lower.service import LowerService, TextRequest
from model_glue import arguments, model_module
from waiting import wait_until


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return model_module("hplm_lower", monkeypatch)


@pytest.fixture
def model(module: ModuleType, tiny_home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv(HOME_VARIABLE, str(tiny_home.path))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # set by the model, and only for this test
    model = module.TritonPythonModel()
    model.initialize(arguments("hplm_lower", tmp_path, {}))
    yield model
    model.finalize()


class Request:
    """One row, as Triton hands it over."""

    def __init__(self, hplm: str, parameters: str = "") -> None:
        self.answers: list[Any] = []
        self._parameters = parameters
        self._columns = {name: np.array([[value]], np.object_) for name, value in (("MODEL", hplm), ("TEXT", "cat"))}

    def column(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(as_numpy=lambda: np.char.encode(self._columns[name].astype(str)).astype(np.object_))

    def parameters(self) -> str:
        return self._parameters

    def get_response_sender(self) -> SimpleNamespace:
        return SimpleNamespace(send=lambda response=None, flags=0: self.answers.append(response))


def test_a_rejection_is_answered_by_the_call_that_brings_it(
    model: Any, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counts as no open request, for which a drain would wait."""
    monkeypatch.setattr(module.pb_utils, "get_input_tensor_by_name", Request.column, raising=False)
    monkeypatch.setattr(module, "triton_error", lambda _, error: error)
    opened: list[int] = []
    monkeypatch.setattr(model._heartbeat, "begin_requests", lambda: opened.append(1))
    requests = [Request("acme/topic"), Request("acme/nothing"), Request("acme/topic", json.dumps({"deadline_ms": 0}))]
    accepted, absent, wrong = model.execute(requests)
    assert accepted is None
    assert "acme/nothing" in str(absent.error)
    assert "deadline_ms" in str(wrong.error)
    wait_until(lambda: bool(requests[0].answers))
    assert [len(one.answers) for one in requests] == [1, 0, 0]
    assert opened == [1]


def test_batches_without_the_plugin_are_warned_of(
    module: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = arguments("hplm_lower", tmp_path, {})
    with caplog.at_level(logging.WARNING):
        module._warn_without_plugin(given)
        assert not caplog.records
        config = json.loads(given["model_config"]) | {"dynamic_batching": {}}
        module._warn_without_plugin({**given, "model_config": json.dumps(config)})
    assert "a text with a damaged length fails the requests that share its batch" in caplog.text


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
