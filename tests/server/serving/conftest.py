"""Tiny model repositories for the tests of the server process itself."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 8
input {{ name: "TEXT" data_type: TYPE_STRING dims: 1 }}
output {{ name: "RESULT" data_type: TYPE_STRING dims: 1 }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""

ECHO = """
import os
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        INITIALIZE

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", each)]) for each in inputs]
"""


@pytest.fixture
def make_repository(tmp_path) -> Callable[..., Path]:
    """A repository with one echo model, whose `initialize` has the given body."""

    def make(initialize: str = "pass", name: str = "echo") -> Path:
        version = tmp_path / f"repository_{name}" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(ECHO.replace("INITIALIZE", initialize))
        (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name))
        return version.parents[1]

    return make


@pytest.fixture
def busy_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]
