"""`hplm serve` under its watchdog: what dies or hangs is replaced, readiness is true, and a stop loses nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.home import Home
from builder.export.repository import installed_code, render_repository
from builder.export.settings import ExportSettings
from builder.serving.run_folder import SHARED_MEMORY, shm_prefix
from hplm_client import Classification, ClientError, HplmClient
from living_processes import living
from waiting import wait_until

pytestmark = pytest.mark.server
HPLM = str(Path(sys.executable).with_name("hplm"))
FREE_PORTS = ("--http", "0", "--grpc", "0", "--metrics", "0")
HANGING = """

import time
from backends.engine.loop import ServeLoop

ServeLoop._stage_next = lambda self: time.sleep(3600)
"""
NOT_EXECUTED = ("NotReadyError", "ConnectionFailedError")
_PATIENCE_S = 60.0


@dataclass
class Operated:
    """A running `hplm serve`, its processes and its shared memory until now."""

    process: subprocess.Popen[str]
    grpc: str
    health: str

    def ask(self, method: str, path: str) -> tuple[int, dict]:
        connection = http.client.HTTPConnection(self.health, timeout=_PATIENCE_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        return self.ask("GET", "/readyz")[0] == 200

    def wait_until(self, ready: bool, timeout_s: float = _PATIENCE_S) -> float:
        """Wait for that answer of `/readyz`; returns the seconds."""
        began = time.monotonic()
        while self.is_ready() != ready:
            assert time.monotonic() - began < timeout_s, self.ask("GET", "/readyz")
            time.sleep(0.02)
        return time.monotonic() - began

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stubs(self, model: str) -> list[psutil.Process]:
        return [each for each in living(self.descendants()) if f"/{model}/" in " ".join(each.cmdline())]

    def tritonserver(self) -> psutil.Process:
        return next(each for each in self.descendants() if each.name() == "tritonserver")

    def infer(self) -> Mapping[str, float]:
        with HplmClient(f"grpc://{self.grpc}") as client:
            answer = client.infer("acme/topic", "my cat is lovely")
        assert isinstance(answer, Classification)
        return answer.scores


def serve(home: Home, *options: str) -> subprocess.Popen[str]:
    command = [HPLM, "serve", "--home", str(home.path), *FREE_PORTS, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def operated(home: Home, *options: str) -> Iterator[Operated]:
    """Serve until the test stops it; whatever happens, nothing may be left."""
    process = serve(home, *options)
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready:"))
        grpc, health = re.findall(r"(?:grpc|health http)://([\d.:]+)", ready)
        yield Operated(process, grpc, health)
    finally:
        process.kill()
        process.communicate()


def stop(server: Operated, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """Send a signal and wait for the end; returns the exit code and what was said to stderr."""
    before, folders = server.descendants(), run_folders(server)
    server.process.send_signal(number)
    _, err = server.process.communicate(timeout=_PATIENCE_S)
    assert not living(before)
    assert not [folder for folder in folders if folder.exists() or list(SHARED_MEMORY.glob(f"{shm_prefix(folder)}*"))]
    return server.process.returncode, err


def run_folders(server: Operated) -> list[Path]:
    return [
        Path(path)
        for each in server.stubs("hplm_upper")
        for path in re.findall(r"\S+/hplm-triton-\w+", " ".join(each.cmdline()))
    ]


class Load:
    """Requests one after the other on some threads, and what became of them."""

    def __init__(self, url: str, threads: int) -> None:
        self.outcomes = Counter[str]()
        self._url = url
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
            assert not thread.is_alive(), "a request has no outcome"

    def _ask(self) -> None:
        with HplmClient(self._url, retries=0) as client:
            while not self._stopping.is_set():
                try:
                    client.infer("acme/topic", "my cat is lovely")
                    self.outcomes["answered"] += 1
                except ClientError as error:
                    self.outcomes[type(error).__name__] += 1
                    time.sleep(0.02)


def assert_lossless(load: Load, threads: int) -> None:
    """What was accepted was answered; of those that were being rejected when Triton ended, each thread had one."""
    unclear = sum(count for outcome, count in load.outcomes.items() if outcome not in ("answered", *NOT_EXECUTED))
    assert unclear <= threads, load.outcomes
    assert not load.outcomes.keys() - {"answered", "ConnectionLostError", "RequestCancelledError", *NOT_EXECUTED}


def test_a_killed_stub_is_replaced_and_a_stop_under_load_loses_nothing(tiny_home: Home) -> None:
    """An export beside the server changes nothing of that: not even whether callers need tokens."""
    fp32 = {"dtype": "fp32"}
    exported = ExportSettings(lower_parameters=fp32, upper_parameters=fp32)
    render_repository(tiny_home.repository, exported)
    with operated(tiny_home) as server:
        answer, (stub,) = server.infer(), server.stubs("hplm_upper")
        assert server.ask("GET", "/startupz") == server.ask("GET", "/livez") == (200, {"ok": True})
        render_repository(tiny_home.repository, replace(exported, lower_parameters={**fp32, "auth": "tokens"}))
        stub.kill()
        server.wait_until(ready=False)
        server.wait_until(ready=True)
        assert server.stubs("hplm_upper") != [stub]
        assert server.infer() == like(answer)
        load = Load(f"grpc://{server.grpc}", threads=3)
        wait_until(lambda: load.outcomes["answered"] > 10)
        code, said = stop(server)
        load.close()
    assert code == 0
    assert load.outcomes["answered"] > 0
    assert_lossless(load, 3)
    lines = [line.partition(" watchdog: ")[2] for line in said.splitlines() if " watchdog: " in line]
    assert lines[0] == f"not ready: hplm_upper_0_0 (process {stub.pid}) has died (SIGKILL)"
    assert (
        lines[1] == f"hplm_upper_0_0 (process {stub.pid}) has died (SIGKILL); restart 1 of at most 5 within 10 minutes"
    )
    assert lines[2].startswith("ready again ") and lines[-1] == "drained: nothing is open"
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} watchdog", line) for line in said.splitlines()[3:])
    assert lines[1] in (tiny_home.run / "server.log").read_text()


def ask_in_vain(client: HplmClient) -> None:
    with pytest.raises(ClientError):
        client.infer("acme/topic", "a cat")


def like(scores: Mapping[str, float]) -> Any:
    """Return what equals the same answer of another process: sums in fp32 may differ in their last digit."""
    return pytest.approx(scores, abs=1e-6)


def kill_lower(server: Operated) -> None:
    server.stubs("hplm_lower")[0].kill()


def stop_upper(server: Operated) -> None:
    server.stubs("hplm_upper")[0].suspend()


def kill_server(server: Operated) -> None:
    server.tritonserver().kill()


def stop_server(server: Operated) -> None:
    server.tritonserver().suspend()


@pytest.mark.long
@pytest.mark.parametrize("fault", [kill_lower, stop_upper, kill_server, stop_server])
def test_whatever_dies_or_is_stopped_is_replaced(tiny_home: Home, fault: Callable[[Operated], None]) -> None:
    with operated(tiny_home) as server:
        answer = server.infer()
        fault(server)
        server.wait_until(ready=False, timeout_s=5)
        server.wait_until(ready=True)
        assert server.infer() == like(answer)
        assert stop(server)[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("model", ["hplm_lower", "hplm_upper"])
def test_a_process_that_stood_still_longer_than_triton_waits_is_replaced(tiny_home: Home, model: str) -> None:
    """The watchdog would let it be, but Triton has given up on it, and frees memory that it goes on to read.

    Where that is the memory of the very call that waited, it dies before it notices.
    """
    with operated(tiny_home) as server:
        answer, stubs = server.infer(), server.stubs(model)
        load = Load(f"grpc://{server.grpc}", threads=3)
        time.sleep(0.3)
        for stub in stubs:
            stub.suspend()
        time.sleep(1.5)
        for stub in stubs:
            stub.resume()
        server.wait_until(ready=False, timeout_s=3)
        server.wait_until(ready=True)
        load.close()
        assert not set(stubs) & set(server.stubs(model))
        assert server.infer() == like(answer)
        code, said = stop(server)
    assert code == 0
    assert re.search(r"has died \((exit code 70|SIGSEGV)\); restart 1 of at most 5", said), said


@pytest.mark.long
def test_a_loop_that_hangs_is_replaced_until_it_is_given_up(tiny_home: Home, tmp_path: Path) -> None:
    code = shutil.copytree(installed_code(), tmp_path / "code")
    model = code / "hplm_upper" / "1" / "model.py"
    model.write_text(model.read_text() + HANGING)
    settings = ExportSettings(lower_instances=1, upper_parameters={"dtype": "fp32", "slots": "5"})
    render_repository(tiny_home.repository, settings, code)
    process = serve(tiny_home, "--max-restarts", "1")
    try:
        printed, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "ready:" not in printed, "no request was ever answered"
    assert "no heartbeat of its loop 'stage' for" in said
    assert "; restart 1 of at most 1 within 10 minutes" in said, "of the loop, or of the canary that it keeps waiting"
    assert "it was restarted 1 times within 10 minutes and is given up" in said.splitlines()[-1]


@pytest.mark.long
def test_without_restarts_the_first_death_ends_the_command(tiny_home: Home) -> None:
    with operated(tiny_home, "--max-restarts", "0") as server:
        left = server.descendants()
        kill_server(server)
        _, said = server.process.communicate(timeout=_PATIENCE_S)
        assert server.process.returncode == 1
    assert "hplm: tritonserver" in said.splitlines()[-1]
    assert not living(left)


@pytest.mark.long
def test_an_order_to_drain_leaves_the_server_until_the_signal(tiny_home: Home) -> None:
    with operated(tiny_home) as server:
        load = Load(f"grpc://{server.grpc}", threads=2)
        time.sleep(0.3)
        assert server.ask("POST", "/drain") == (200, {"ok": True})
        assert server.ask("GET", "/readyz") == (503, {"ok": False, "reasons": ["the server is draining"]})
        answered = load.outcomes["answered"]
        time.sleep(0.3)
        load.close()
        assert load.outcomes["answered"] == answered > 0
        assert_lossless(load, 2)
        assert stop(server)[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_stops_at_once(tiny_home: Home, signals: Sequence[signal.Signals]) -> None:
    with operated(tiny_home) as server:
        server.stubs("hplm_upper")[0].suspend()
        with HplmClient(f"grpc://{server.grpc}", retries=0) as client:
            hanging = threading.Thread(target=ask_in_vain, args=(client,))
            hanging.start()
            time.sleep(0.3)
            server.process.send_signal(signals[0])
            time.sleep(0.5)
            began = time.monotonic()
            code, said = stop(server, signals[1])
            assert code == 0 and time.monotonic() - began < 3
            assert "stopping at once" in said
            hanging.join(_PATIENCE_S)
            assert not hanging.is_alive()


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.1, 1.0, 2.5])
def test_a_signal_while_loading_stops(tiny_home: Home, after_s: float) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    process = serve(tiny_home)
    assert process.stderr is not None and process.stderr.readline().startswith("starting")
    time.sleep(after_s)
    left = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out.splitlines()[-1]) == (0, "stopped")
    assert not living(left)


@pytest.mark.long
def test_a_health_port_in_use_is_named(tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    with operated(tiny_home) as server:
        port = server.health.rpartition(":")[2]
        other = serve(tiny_home, "--health-port", port)
        holder = f"process {server.process.pid} (hplm)"
        told = f"port {port} on 127.0.0.1 is in use by {holder}; give another --health-port"
        assert told in other.communicate(timeout=30)[1]
        assert other.returncode == 4
        server.process.kill()
