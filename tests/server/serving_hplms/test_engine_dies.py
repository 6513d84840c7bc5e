"""An engine that can serve nothing any more, on the real Triton: its requests are answered, and the server ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backends.home import Home
from builder.export.repository import installed_code, render_repository
from builder.export.settings import ExportSettings
from builder.serving import ServerConfig, TritonServer
from builder.serving.keeper import LOST_PROCESS_CODE
from hplm_client import HplmClient, ServerError, UnavailableError

pytestmark = pytest.mark.server
DEFECT = """

from backends.scheduling.admission import Admission

def _fail(*_):
    raise ValueError("a defect")

Admission.take_batch = _fail
"""


def test_a_loop_that_fails_answers_its_requests_and_ends_the_server(tiny_home: Home, tmp_path: Path) -> None:
    code = shutil.copytree(installed_code(), tmp_path / "code")
    model = code / "hplm_upper" / "1" / "model.py"
    model.write_text(model.read_text() + DEFECT)
    settings = ExportSettings(lower_instances=1, upper_parameters={"dtype": "fp32", "slots": "5"})
    render_repository(tiny_home.repository, settings, code)
    config = ServerConfig(repository=tiny_home.repository, environment={"HPLM_HOME": str(tiny_home.path)})
    with TritonServer(config) as server:
        with HplmClient(f"grpc://{server.grpc_url}") as client, pytest.raises((UnavailableError, ServerError)):
            client.infer("acme/topic", "my cat is lovely", deadline_ms=20_000)
        assert server.wait(timeout_s=30) == LOST_PROCESS_CODE
        assert server.failure_reason().startswith("a model's process ended by itself, with exit code 70")
