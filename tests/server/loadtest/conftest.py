"""A real tritonserver whose hPLMs answer as late as their names say, for loads that must not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.serving import ServerConfig, TritonServer

CONTRACT = Path(__file__).parent.parent / "clients" / "contract"


@pytest.fixture(scope="session")
def slow_server() -> Iterator[TritonServer]:
    with TritonServer(ServerConfig(repository=CONTRACT, exit_timeout_s=1)) as running:
        yield running
