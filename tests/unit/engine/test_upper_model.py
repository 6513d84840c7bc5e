"""The Triton glue of `hplm_upper` beside a stand-in for Triton: a defect in `execute` costs one request at most."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.home import HOME_VARIABLE, Home
from backends.seal import Seal
from backends.wire import HIDDEN, TICKET, WORDS, Ticket, encode_tickets, fold_rows, fold_words
from model_glue import arguments, model_module
from served_engine import keys_of

WIDTH = 64


class Request:
    """A request of one row; its sender puts the responses into `sent`."""

    def __init__(self, key: int, is_broken: bool = False) -> None:
        self.tensors = {
            HIDDEN: fold_rows([np.zeros((5, WIDTH), np.float16)]),
            TICKET: encode_tickets([Ticket(key, 5, False, None)], Seal.of_server()),
            WORDS: fold_words([b""]),
        }
        self.sent: queue.Queue[Any] = queue.Queue()
        self._is_broken = is_broken

    def get_response_sender(self) -> Any:
        if self._is_broken:
            raise RuntimeError("no sender")
        return SimpleNamespace(send=lambda response, flags: self.sent.put(response))

    def inputs(self) -> list[Any]:
        return [
            SimpleNamespace(name=lambda name=name: name, as_numpy=lambda array=array: array)
            for name, array in self.tensors.items()
        ]

    def error(self) -> object:
        """Wait for the response and return its error; None for an answer."""
        return self.sent.get(timeout=30).error


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The model's code, beside a stand-in for the module that only Triton has."""
    return model_module("hplm_upper", monkeypatch)


@pytest.fixture
def model(module: ModuleType, tiny_home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv(HOME_VARIABLE, str(tiny_home.path))
    monkeypatch.setenv("HPLM_SIGNALS", str(tmp_path))
    model = module.TritonPythonModel()
    model.initialize(arguments("hplm_upper", tmp_path, {"dtype": "fp32", "slots": "4"}))
    yield model
    model.finalize()


def test_a_request_without_a_sender_fails_alone(model: Any, tiny_home: Home) -> None:
    key = keys_of(tiny_home)["acme/topic"]
    requests = [Request(key), Request(key, is_broken=True), Request(key)]
    assert model.execute(requests) is None
    assert requests[0].error() is None and requests[2].error() is None


def test_a_defect_of_queueing_answers_its_request(
    model: Any, module: ModuleType, tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(service: object, *args: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(module.UpperService, "submit_all", fail)
    request = Request(keys_of(tiny_home)["acme/topic"])
    assert model.execute([request]) is None
    assert request.error() is not None
