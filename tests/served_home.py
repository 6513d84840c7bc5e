"""The tiny home behind the real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.home import Home
from builder.export import ExportSettings, render_repository
from builder.serving import ServerConfig, TritonServer
from tiny_home import build_tiny_home


@dataclass(frozen=True)
class Served:
    """A home of its own and the real Triton server on it; `work` is for files that a test makes."""

    home: Home
    server: TritonServer
    work: Path

    @property
    def grpc_url(self) -> str:
        return self.server.grpc_url

    @property
    def http_url(self) -> str:
        return self.server.http_url


@contextmanager
def serving(folder: Path, dtype: str) -> Iterator[Served]:
    home = build_tiny_home(folder)
    parameters = {"dtype": dtype, "slots": "4", "threads": "1"}
    render_repository(home.repository, ExportSettings(lower_instances=2, upper_parameters=parameters))
    config = ServerConfig(repository=home.repository, environment={"HPLM_HOME": str(home.path)})
    with TritonServer(config) as server:
        yield Served(home, server, folder / "work")
