"""One running gateway: Envoy under a keeper, with its public ports in front of the servers.

Usage:
    gateway = Gateway(find_gateway(), settings, upstreams, log_path)
    gateway.start()
    gateway.wait_ready()
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from backends.errors import InvalidArgumentError
from builder.fleet.admin import Admin
from builder.fleet.errors import GatewayFailedError
from builder.fleet.gateway_config import GatewaySettings, gateway_config
from builder.fleet.gateway_files import GatewayFiles
from builder.fleet.gateway_program import GatewayProgram
from builder.fleet.routing import Routing, Servers
from builder.fleet.upstream import Upstream
from builder.serving.config import MEBIBYTE
from builder.serving.kept import KeptProgram
from builder.serving.log import failure_reason
from builder.serving.run_folder import RunFolder

_MAX_LOG_BYTES = 16 * MEBIBYTE
_READY_S = 20.0
_ROUTED_S = 10.0
_POLL_S = 0.05
_GRACE_S = 2.0
_LONGEST_SOCKET = 100
"""Characters; Linux allows a socket's path 107."""
_MAX_THREADS = 8
_CORES_PER_THREAD = 4


def _ignore() -> None:
    pass


class Gateway:
    """A gateway that lives no longer than the program that started it; the caller has claimed its ports."""

    def __init__(
        self,
        program: GatewayProgram,
        settings: GatewaySettings,
        upstreams: Sequence[Upstream],
        log_path: Path,
        routing: Routing = Routing(),
    ) -> None:
        self._program = program
        self._settings = settings
        self._upstreams = upstreams
        self._log_path = log_path
        self._routing = routing
        self._groups: set[Servers] = set()
        """All that it was ever told: a cluster that goes would break requests that are on their way to it."""
        self._files: GatewayFiles | None = None
        self._kept: KeptProgram | None = None
        self.pid: int | None = None
        self.admin: Admin | None = None

    def start(self) -> None:
        """Start the process; returns before it listens."""
        folder = RunFolder.create()
        try:
            self._start_in(folder)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        finally:
            folder.unlock()

    def wait_ready(self, on_poll: Callable[[], object] = _ignore) -> None:
        """Return once it listens.

        Raises:
            GatewayFailedError: It has ended, or does not come to that in time.
        """
        deadline = time.monotonic() + _READY_S
        while self.admin is None or not self.admin.is_ready():
            if self.poll() is not None:
                raise GatewayFailedError(f"the gateway ended while starting: {self.failure_reason()}")
            if time.monotonic() > deadline:
                raise GatewayFailedError(f"the gateway was not ready within {_READY_S:g} s: {self.failure_reason()}")
            on_poll()
            time.sleep(_POLL_S)

    def route(self, routing: Routing) -> None:
        """Send requests otherwise from now on; none is lost. Does nothing where it has ended.

        Raises:
            GatewayFailedError: It does not take the servers in; requests go where they went.
        """
        files, admin = self._files, self.admin
        if files is None or admin is None or routing == self._routing or self.poll() is not None:
            return
        names = self._write_clusters(files, routing)
        end = time.monotonic() + _ROUTED_S
        while not admin.knows(names):
            if time.monotonic() > end:
                raise GatewayFailedError(f"the gateway did not take in new groups of servers: {self.failure_reason()}")
            time.sleep(_POLL_S)
        files.write_routes(routing)
        self._routing = routing

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._kept.poll() if self._kept is not None else None

    def stop(self) -> None:
        """End it at once; open requests break. Harmless when it has ended already."""
        if self._kept is not None:
            self._kept.stop()

    def failure_reason(self) -> str:
        return failure_reason(self._kept.lines if self._kept is not None else [])

    def _start_in(self, folder: RunFolder) -> None:
        socket = folder.path / "admin.sock"
        if len(str(socket)) > _LONGEST_SOCKET:
            raise InvalidArgumentError(f"{folder.path} is too long a path for a socket; give a shorter TMPDIR")
        settings = replace(self._settings, admin_socket=socket)
        self._files = GatewayFiles(folder.path, self._settings.balance, self._upstreams)
        self._write_clusters(self._files, self._routing)
        self._files.write_routes(self._routing)
        if settings.tls is not None:
            self._files.write_secrets(settings.tls)
        config = folder.path / "envoy.json"
        document = gateway_config(settings, self._upstreams, self._files)
        config.write_text(json.dumps(document, indent=2), encoding="utf-8")
        arguments = gateway_arguments(config, num_threads(len(os.sched_getaffinity(0))))
        self._kept = KeptProgram(
            [str(self._program.binary), *arguments],
            folder,
            dict(os.environ),
            self._log_path,
            max_log_bytes=_MAX_LOG_BYTES,
            grace_s=_GRACE_S,
        )
        try:
            self.pid = self._kept.start()
        except BaseException:
            self._kept.stop()
            raise
        self.admin = Admin(socket)

    def _write_clusters(self, files: GatewayFiles, routing: Routing) -> list[str]:
        self._groups.update(routing.groups)
        return files.write_clusters(sorted(self._groups))


def gateway_arguments(config: Path, threads: int) -> list[str]:
    """The arguments of Envoy, without the program itself."""
    # Of each option and its value it takes two arguments.
    options = {"--config-path": str(config), "--concurrency": str(threads), "--log-level": "warning"}
    # A hot restart would look for an Envoy of the same number, and other programs of this machine may run one.
    return ["--disable-hot-restart", *chain.from_iterable(options.items())]


def num_threads(cores: int) -> int:
    """Leave most of the machine to the servers: one core passes some ten thousand requests a second."""
    return min(max(cores // _CORES_PER_THREAD, 1), _MAX_THREADS)
