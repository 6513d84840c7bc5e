"""A plugin that was built for another version of Triton's backend interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION
from builder.plugin import build_plugin
from builder.serving import ServerConfig, TritonServer

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("definitions", "version"),
    [
        (("-DHPLM_TRITON_API_MAJOR=2", "-DHPLM_TRITON_API_MINOR=0"), "2.0"),
        pytest.param(("-DHPLM_TRITON_API_MINOR=999",), "1.999", marks=pytest.mark.long),
    ],
)
def test_it_is_not_used_and_the_log_says_so(
    make_repository: Callable[..., Path], definitions: tuple[str, ...], version: str
) -> None:
    repository = make_repository()
    build_plugin(repository / "echo" / "1" / FILE_NAME, PLAN_VERSION, definitions)
    with (repository / "echo" / "config.pbtxt").open("a") as config:
        config.write("dynamic_batching { }\n")
    with TritonServer(ServerConfig(repository=repository)) as server:
        assert f"built for version {version} of Triton's" in server.log_path.read_text()
        tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([["still"]], dtype=np.object_))
        answer = tritonclient.grpc.InferenceServerClient(server.grpc_url).infer("echo", [tensor])
        assert answer.as_numpy("RESULT").tolist() == [[b"still"]]
