"""One tritonserver process: started, waited for, stopped, and nothing left behind.

Usage:
    with TritonServer(ServerConfig(repository=home / "repository")) as server:
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
"""

from __future__ import annotations

import http.client
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from backends.errors import NotFoundError
from builder.serving.config import Ports, ServerConfig, admin_headers, server_arguments
from builder.serving.errors import ServerNotReadyError, ServerStartError
from builder.serving.exit_code import how_ended
from builder.serving.exported_files import ExportedFiles
from builder.serving.installation import Installation, find_installation
from builder.serving.kept import KeptProgram
from builder.serving.log import failure_reason, last_lines
from builder.serving.ports import PortClaims
from builder.serving.run_folder import RunFolder, sweep_stale

_POLL_S = 0.05
_PROBE_TIMEOUT_S = 2.0
_UNLOAD_GRACE_S = 5.0
"""What unloading models takes beside the server's own time for ending."""
_EVERY_NETWORK = "0.0.0.0"
_T = TypeVar("_T")


def _ignore() -> None:
    pass


class TritonServer:
    """A server that lives no longer than the program that started it."""

    def __init__(self, config: ServerConfig, on_log: Callable[[str], None] | None = None) -> None:
        self.config = config
        self._on_log = on_log
        self._resources = ExitStack()
        self._kept: KeptProgram | None = None
        self._ports: Ports | None = None
        self._log_path: Path | None = None
        self._run_folder: Path | None = None
        self._pid: int | None = None
        self._admin_key: str | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process; returns before the models are loaded."""
        if self._kept is not None:
            raise ServerStartError("this server was started already; make a new one to start again")
        exported = self.config.exported
        if not (self.config.repository.is_dir() if exported is None else exported.files):
            raise NotFoundError(
                f"there is no model repository at {self.config.repository}; make one with `hplm export`"
            )
        installation = find_installation()
        sweep_stale()
        claims = PortClaims.take(self.config)
        self._resources.callback(claims.release)
        self._ports = claims.ports
        try:
            self._start_in(RunFolder.create(), installation)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, timeout_s: float | None = None, on_poll: Callable[[], None] = _ignore) -> None:
        """Return once every model is ready; raise with the server's own reason when that cannot be.

        `on_poll` is called again and again meanwhile; what it raises ends the waiting.
        """
        limit_s = self.config.ready_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while not self.is_ready():
            if (code := self.poll()) is not None:
                self.stop()
                raise ServerStartError(f"{how_ended('tritonserver', code)} while starting: {self.failure_reason()}")
            if time.monotonic() > deadline:
                raise ServerNotReadyError(
                    f"tritonserver was not ready within {limit_s:g} s; its last words: {self.failure_reason()}"
                )
            on_poll()
            time.sleep(_POLL_S)

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.http_url, timeout=_PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """End the server and everything it started; harmless when it has ended already."""
        if self._kept is not None:
            self._kept.stop()
        self._resources.close()

    def kill(self) -> None:
        """End the server at once, whatever it does, and remove what it has; also one that is stopped or hangs."""
        if self._kept is not None:
            self._kept.kill()
        self._resources.close()

    def poll(self) -> int | None:
        """The exit code of the server; None while it runs."""
        return self._kept.poll() if self._kept is not None else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the server to end by itself; its exit code, or None when the time is over."""
        return _started(self._kept).wait(timeout_s)

    def failure_reason(self) -> str:
        return failure_reason(self._kept.lines if self._kept is not None else [])

    def last_lines(self) -> list[str]:
        """The end of the log; it stays known when the server has ended."""
        return last_lines(self._kept.lines if self._kept is not None else [])

    @property
    def pid(self) -> int:
        return _started(self._pid)

    @property
    def run_folder(self) -> Path:
        """The private folder of the server, where its processes write what they tell each other."""
        return _started(self._run_folder)

    @property
    def log_path(self) -> Path:
        """The path of the whole log; the default one goes away with the server."""
        return _started(self._log_path)

    @property
    def ports(self) -> Ports:
        return _started(self._ports)

    @property
    def http_url(self) -> str:
        return f"{_reachable(self.config.http_address)}:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        return f"{_reachable(self.config.address)}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        address = self.config.metrics_address or self.config.address
        return f"http://{_reachable(address)}:{self.ports.metrics}/metrics"

    @property
    def admin_headers(self) -> dict[str, str]:
        """Headers that open Triton's administrative endpoints; without them it answers that they are restricted."""
        return admin_headers(_started(self._admin_key))

    def _start_in(self, folder: RunFolder, installation: Installation) -> None:
        try:
            folder.lay_out(installation)
            self._spawn(installation, folder)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        finally:
            folder.unlock()

    def _repository_in(self, folder: RunFolder) -> Path:
        repository, configurations = self.config.repository, self.config.configurations
        exported = self.config.exported
        if exported is None and not configurations:
            return folder.link_repository(repository)
        exported = exported or ExportedFiles.read(repository)
        return folder.lay_out_repository(repository, exported.configured(configurations))

    def _spawn(self, installation: Installation, folder: RunFolder) -> None:
        served = replace(self.config, repository=self._repository_in(folder))
        self._admin_key = folder.admin_key
        arguments = server_arguments(served, self.ports, folder.backend_directory, folder.shm_prefix, folder.admin_key)
        self._run_folder = folder.path
        self._log_path = self.config.log_path or folder.path / "server.log"
        self._kept = KeptProgram(
            [str(installation.binary), *arguments],
            folder,
            {**os.environ, **folder.environment(installation), **self.config.environment},
            self._log_path,
            max_log_bytes=self.config.max_log_bytes,
            grace_s=self.config.exit_timeout_s + _UNLOAD_GRACE_S,
            on_log=self._on_log,
        )
        try:
            self._pid = self._kept.start()
        except ServerStartError as error:
            raise ServerStartError(f"tritonserver could not be started: {self.failure_reason()}") from error


def _reachable(address: str) -> str:
    """Return where this machine reaches an address to listen on."""
    return "127.0.0.1" if address == _EVERY_NETWORK else address


def _started(value: _T | None) -> _T:
    if value is None:
        raise ServerStartError("the server was not started yet")
    return value
