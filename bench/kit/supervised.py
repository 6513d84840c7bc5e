"""`hplm serve` as an operator runs it: a command of its own, with its watchdog, ports, processes and logs.

Usage:
    with supervised(home, Serving(lower_instances=2)) as server:
        os.kill(server.stubs()["hplm_upper"][0], signal.SIGKILL)
        server.wait_ready(timeout_s=15)
        code = server.stop()
        server.start()
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from backends.errors import UnavailableError
from backends.home import Home
from bench.kit.served import Serving
from builder.serving import ServerConfig
from builder.serving.ports import PortClaims
from builder.termination import termination_interrupts

_HPLM = Path(sys.executable).with_name("hplm")
_ADDRESS = "127.0.0.1"
_STUB = "triton_python_backend_stub"
_TRITON = "tritonserver"
_MODEL = re.compile(r"/(hplm_(?:lower|upper))/")
_RUN_FOLDER = re.compile(r"--backend-directory=(\S+)/backends(?: |$)")
_POLL_S = 0.02
_PROBE_TIMEOUT_S = 5.0
_READY_S = 120.0
_STOP_S = 60.0
_LAST_LINES = 5


class SupervisedServer:
    """One `hplm serve` after another on the same ports and the same home, whose repository is rendered once.

    Args:
        home: Its folder `repository` is written.
        serving: How to export; `name` must be that of the home's own repository.
        options: Further ones of `hplm serve`.
    """

    def __init__(self, home: Home, serving: Serving, options: Sequence[str] = ()) -> None:
        config = serving.config(home)
        if config.repository != home.repository:
            raise ValueError(f"hplm serve reads {home.repository}, and not {config.repository}")
        self.home = home
        self.log_path = home.path / "serve.log"
        """What the command says: its watchdog's lines, and errors of Triton. Triton's own log is `run/server.log`."""
        self._environment = {**os.environ, **config.environment}
        ports = _free_ports(config)
        self.http_url, self.grpc_url, metrics_url, health_address = (f"{_ADDRESS}:{port}" for port in ports)
        self.metrics_url = f"http://{metrics_url}/metrics"
        self.health_url = f"http://{health_address}"
        names = ("--http", "--grpc", "--metrics", "--health-port")
        numbers = [part for name, port in zip(names, ports, strict=True) for part in (name, str(port))]
        self._command = [str(_HPLM), "serve", "--home", str(home.path), *numbers, *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        """When the command was started last, on the monotonic clock."""

    # --- its life ---

    def start(self) -> None:
        """Start the command; returns at once. Call it again after `stop`."""
        if self.is_running:
            raise UnavailableError("hplm serve runs already")
        with self.log_path.open("ab") as log:
            self.started_s = time.monotonic()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def wait_ready(self, timeout_s: float = _READY_S) -> float:
        """Return once `/readyz` says yes; returns the seconds since the call.

        Raises:
            UnavailableError: The command has ended, or is not ready in time.
        """
        began = time.monotonic()
        while not self.is_ready():
            if not self.is_running:
                raise UnavailableError(f"hplm serve ended with code {self.exit_code}: {self._last_lines()}")
            if time.monotonic() - began > timeout_s:
                raise UnavailableError(f"hplm serve was not ready within {timeout_s:g} s: {self._last_lines()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began

    def stop(self, timeout_s: float = _STOP_S) -> int:
        """Send SIGTERM, which drains, and wait for the end; returns the exit code.

        Raises:
            UnavailableError: It does not end in time.
        """
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def send_signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def wait(self, timeout_s: float = _STOP_S) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"hplm serve did not end within {timeout_s:g} s: {self._last_lines()}") from None

    def end_at_once(self) -> None:
        """Leave no process behind, whatever the server is doing; harmless where it has ended."""
        if self._process is None or not self.is_running:
            return
        family = [psutil.Process(self.pid), *self.descendants()]
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGTERM):  # the second one ends a drain
            self._process.send_signal(number)
            time.sleep(_POLL_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        _, left = psutil.wait_procs(family, timeout=_PROBE_TIMEOUT_S)
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command that was started last; None while it runs."""
        return None if self._process is None else self._process.poll()

    # --- its health port ---

    def ask_health(self, path: str, method: str = "GET", timeout_s: float = _PROBE_TIMEOUT_S) -> tuple[int, Any]:
        """Ask `/livez`, `/readyz` or `/startupz`, or POST `/drain`; returns the status and the JSON of the answer.

        Raises:
            OSError: Nothing listens there, or nothing answers in time.
        """
        connection = http.client.HTTPConnection(self.health_url.removeprefix("http://"), timeout=timeout_s)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except http.client.HTTPException as error:
            raise ConnectionError(f"{self.health_url}{path}: {error!r}") from error
        finally:
            connection.close()

    def is_ready(self) -> bool:
        """Whether `/readyz` says so; false where nothing answers."""
        with suppress(OSError):
            return self.ask_health("/readyz")[0] == http.HTTPStatus.OK
        return False

    # --- its processes, as they are now ---

    @property
    def pid(self) -> int:
        """The process of `hplm serve`."""
        return self._running().pid

    def descendants(self) -> list[psutil.Process]:
        """The keeper, tritonserver and its stubs; none where the command has ended."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def triton_pid(self) -> int | None:
        """The process of tritonserver; None between two of them."""
        return next((each.pid for each in self.descendants() if _name(each) == _TRITON), None)

    def run_folder(self) -> Path:
        """The private folder of the tritonserver that runs, with its heartbeats and its sign of draining.

        Raises:
            UnavailableError: None runs.
        """
        for each in self.descendants():
            with suppress(psutil.NoSuchProcess):
                found = _RUN_FOLDER.search(" ".join(each.cmdline()))
                if found is not None:
                    return Path(found[1])
        raise UnavailableError("no tritonserver runs")

    def stubs(self) -> dict[str, list[int]]:
        """The processes of each model that are alive, by the model's name."""
        pids: dict[str, list[int]] = defaultdict(list)
        for each in self.descendants():
            with suppress(psutil.NoSuchProcess):
                found = _MODEL.search(" ".join(each.cmdline()))
                if found is not None and _name(each).startswith(_STUB):
                    pids[found[1]].append(each.pid)
        return dict(pids)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise UnavailableError("hplm serve was not started")
        return self._process

    def _last_lines(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-_LAST_LINES:]) or "it said nothing"


@contextmanager
def supervised(home: Home, serving: Serving, options: Sequence[str] = ()) -> Iterator[SupervisedServer]:
    """A server that is ready, and that ends with the block, even if SIGTERM ends the bench."""
    server = SupervisedServer(home, serving, options)
    with termination_interrupts():
        try:
            server.start()
            server.wait_ready()
            yield server
        finally:
            server.end_at_once()


def _free_ports(config: ServerConfig) -> list[int]:
    """HTTP, gRPC, metrics, health; of all claims none outlives the call, since `hplm serve` makes its own."""
    claims = [PortClaims.take(config) for _ in range(2)]
    ports = [port for claim in claims for port in (claim.ports.http, claim.ports.grpc, claim.ports.metrics)]
    for claim in claims:
        claim.release()
    return ports[:4]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
