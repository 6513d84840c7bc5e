"""The tiny home behind the real Triton."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from backends.home import Home
from backends.lower.settings import lower_dtype_beside
from backends.registry.registry import Registry
from backends.registry.snapshot import REFRESH_INTERVAL_S
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.profiling.preparing_int8 import quantise_root
from builder.serving import ServerConfig, TritonServer
from builder.serving.tls import Tls
from hplm_client import HplmClient, NotFoundError


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


def config_of(home: Home) -> ServerConfig:
    """A server that nobody needs any more unloads its models for a second at most, and is ended then."""
    return ServerConfig(repository=home.repository, environment={"HPLM_HOME": str(home.path)}, exit_timeout_s=1)


def copied(built: Home, folder: Path) -> Home:
    return Home(Path(shutil.copytree(built.path, folder / "home")))


@contextmanager
def serving(
    built: Home, folder: Path, dtype: str, lower_instances: int = 1, tls: Tls | None = None
) -> Iterator[Served]:
    """Serve a copy of a home that was built before, in int8 with smoothing; with `tls` gRPC is encrypted."""
    home = copied(built, folder)
    if dtype == "int8":
        with closing(Registry.open(home)) as registry:
            quantise_root(home, registry, "tiny", [])
    parameters = {"dtype": dtype, "slots": "4", "threads": "1"}
    lower = {"dtype": lower_dtype_beside(dtype)}
    settings = ExportSettings(lower_instances=lower_instances, lower_parameters=lower, upper_parameters=parameters)
    render_repository(home.repository, settings)
    with TritonServer(replace(config_of(home), tls=tls)) as server:
        work = folder / "work"
        work.mkdir()
        yield Served(home, server, work)


def lines_without_stalls(said: str) -> list[str]:
    """The lines of `hplm serve`, but for those of a moment in which it was not ready, as where the machine stalls."""
    stalls = re.compile(" watchdog: (not ready: |ready again, by itself)")
    return [line for line in said.strip().splitlines() if not stalls.search(line)]


def wait_until_served(server: Served, names: list[str], timeout_s: float = 60) -> None:
    """Wait until every process of the server knows these hPLMs.

    Each process reads the registry by itself, so the first answer tells of one process only. Single rows, many at
    once, meet them all; they do so twice, further apart than a process looks.
    """
    rows = [(name, "my cat is lovely") for name in names] * 16
    deadline = time.monotonic() + timeout_s
    with HplmClient(f"grpc://{server.grpc_url}", rows_per_request=1) as client:
        known = 0
        while known < 2:
            answers = client.infer_many(rows, on_error="return")
            known = 0 if any(isinstance(answer, NotFoundError) for answer in answers) else known + 1
            assert time.monotonic() < deadline, f"{names} are not served"
            time.sleep(2 * REFRESH_INTERVAL_S)
