"""The tiny home behind the real Triton."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import ServerConfig, TritonServer


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
def serving(built: Home, folder: Path, dtype: str) -> Iterator[Served]:
    """Serve a copy of a home that was built before."""
    home = Home(Path(shutil.copytree(built.path, folder / "home")))
    parameters = {"dtype": dtype, "slots": "4", "threads": "1"}
    lower = {"dtype": "bf16" if dtype == "int8" else dtype}
    settings = ExportSettings(lower_instances=2, lower_parameters=lower, upper_parameters=parameters)
    render_repository(home.repository, settings)
    config = ServerConfig(repository=home.repository, environment={"HPLM_HOME": str(home.path)})
    with TritonServer(config) as server:
        work = folder / "work"
        work.mkdir()
        yield Served(home, server, work)
