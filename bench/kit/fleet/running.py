"""`hplm fleet serve` as an operator runs it: a command of its own, with servers and a gateway.

Usage:
    with running_fleet(home, Serving(), 2) as fleet:
        os.kill(fleet.server("server-1").pid, signal.SIGKILL)
        fleet.wait_ready()
        fleet.order("apply", "--restart")
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from backends.errors import UnavailableError
from backends.home import Home
from bench.kit.served import Serving
from builder.fleet.admin import Admin
from builder.fleet.control import server_rows
from builder.fleet.errors import NoFleetError
from builder.fleet.fleet_folder import FleetFolder, FleetState, ServerEntry
from builder.termination import termination_interrupts

_HPLM = Path(sys.executable).with_name("hplm")
_FREE_PORTS = ("--http", "0", "--grpc", "0", "--health-port", "0", "--first-port", "0")
_POLL_S = 0.2
_READY_S = 300.0
_ORDER_S = 900.0
_STOP_S = 20.0
_LAST_LINES = 5


class RunningFleet:
    """One fleet on a home, whose repository is rendered before.

    Args:
        home: Its folder `repository` is written.
        serving: How to export; `name` must be that of the home's own repository.
        num_servers: How many.
        options: Further ones of `hplm fleet serve`.
    """

    def __init__(self, home: Home, serving: Serving, num_servers: int, options: Sequence[str] = ()) -> None:
        config = serving.config(home)
        if config.repository != home.repository:
            raise ValueError(f"hplm fleet serve reads {home.repository}, and not {config.repository}")
        self.home = home
        self.num_servers = num_servers
        self.log_path = fleet_log(home)
        self._environment = {**os.environ, **config.environment}
        self._command = [str(_HPLM), "fleet", "serve", "--home", str(home.path), "--servers", str(num_servers)]
        self._command += [*_FREE_PORTS, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command and return once all servers are ready and asked by the gateway."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        self.wait_ready()

    def end_at_once(self) -> None:
        """Leave no process behind; harmless where it has ended."""
        if self._process is None:
            return
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        for _ in range(2):  # the second signal ends a drain
            self._process.terminate()
            time.sleep(_POLL_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        for each in [*family]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.kill()
        self._process.wait()

    def wait_ready(self, timeout_s: float = _READY_S) -> float:
        """Return once each server is ready and asked by the gateway; returns the seconds since the call.

        Raises:
            UnavailableError: The command has ended, or it does not come to that in time.
        """
        began = time.monotonic()
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None:
                raise UnavailableError(f"hplm fleet serve has ended: {self._last_lines()}")
            if time.monotonic() - began > timeout_s:
                raise UnavailableError(f"the fleet was not ready within {timeout_s:g} s: {self._last_lines()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began

    def order(self, *arguments: str) -> None:
        """Run another `hplm fleet` command to its end.

        Raises:
            UnavailableError: It fails.
        """
        command = [str(_HPLM), "fleet", *arguments, "--home", str(self.home.path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_ORDER_S, env=self._environment
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"hplm fleet {' '.join(arguments)} took more than {_ORDER_S:g} s") from error
        if done.returncode != 0:
            raise UnavailableError(f"hplm fleet {' '.join(arguments)} failed: {done.stderr.strip()}")

    @property
    def state(self) -> FleetState:
        return FleetFolder(self.home).running()

    @property
    def grpc_url(self) -> str:
        """Where the gateway takes gRPC."""
        return self.state.gateway.grpc

    @property
    def http_url(self) -> str:
        return self.state.gateway.http

    @property
    def gateway_pid(self) -> int:
        pid = self.state.gateway.pid
        if pid is None:
            raise UnavailableError("the gateway does not run")
        return pid

    @property
    def admin(self) -> Admin:
        path = self.state.gateway.admin
        if path is None:
            raise UnavailableError("the gateway does not run")
        return Admin(Path(path))

    def servers(self) -> list[ServerEntry]:
        return self.state.servers

    def server(self, name: str) -> ServerEntry:
        return next(each for each in self.servers() if each.server == name)

    def direct_urls(self) -> list[str]:
        """Where the servers themselves take gRPC, without the gateway."""
        return [f"127.0.0.1:{each.grpc}" for each in self.servers()]

    def _is_ready(self) -> bool:
        try:
            rows = server_rows(self.state)
        except NoFleetError:
            return False
        return len(rows) == self.num_servers and all(row["state"] == "ready" and row["in_gateway"] for row in rows)

    def _last_lines(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-_LAST_LINES:]) or "it said nothing"


def fleet_log(home: Home) -> Path:
    """What `hplm fleet serve` says on this home is appended there."""
    return home.path / "fleet.log"


@contextmanager
def running_fleet(
    home: Home, serving: Serving, num_servers: int, options: Sequence[str] = ()
) -> Iterator[RunningFleet]:
    """A fleet that is ready, and that ends with the block, even if SIGTERM ends the bench."""
    fleet = RunningFleet(home, serving, num_servers, options)
    with termination_interrupts():
        try:
            fleet.start()
            yield fleet
        finally:
            fleet.end_at_once()


@contextmanager
def only_cores(count: int) -> Iterator[list[int]]:
    """Let this process, and what it starts meanwhile, use the first cores only."""
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[:count]
    os.sched_setaffinity(0, chosen)
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)
