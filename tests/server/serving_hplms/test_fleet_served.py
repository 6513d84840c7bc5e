"""`hplm fleet`: two real servers behind the real gateway; one is killed, one drained, and no request fails."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from backends.home import Home
from backends.server_folder import FOLDER_VARIABLE
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving.run_folder import SHARED_MEMORY, shm_prefix
from hplm_client import HplmClient
from living_processes import living

pytestmark = [pytest.mark.server, pytest.mark.long]
HPLM = str(Path(sys.executable).with_name("hplm"))
FREE_PORTS = ("--http", "0", "--grpc", "0", "--health-port", "0", "--first-port", "0")
HPLMS = ("acme/topic", "globex/topic", "initech/mood")
_PATIENCE_S = 90.0


@dataclass
class Fleet:
    home: Home
    process: subprocess.Popen[str]
    urls: tuple[str, str]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [HPLM, "fleet", *arguments, "--home", str(self.home.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)

    def servers(self) -> list[dict]:
        return json.loads(self.command("status", "--json").stdout)["servers"]

    def drain(self, name: str, *options: str) -> None:
        """Drain a server as soon as the other one is ready, which a busy machine may delay."""
        end = time.monotonic() + _PATIENCE_S
        while (done := self.command("drain", name, *options)).returncode != 0:
            assert done.returncode == 4 and time.monotonic() < end, f"{done.stderr}{self.said()}"
            time.sleep(0.5)

    def wait_until_restarted(self, name: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not any(each["server"] == name and each["restarts"] and each["in_gateway"] for each in self.servers()):
            assert time.monotonic() < end, self.said()
            time.sleep(0.2)

    def said(self) -> str:
        return (self.home.path / "stderr").read_text()


@dataclass
class Load:
    """Callers of both protocols, who ask without pause and never repeat a request themselves."""

    urls: tuple[str, str]
    outcomes: Counter[str] = field(default_factory=Counter)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask, args=(url, hplm)) for url in self.urls for hplm in HPLMS]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, url: str, hplm: str) -> None:
        with HplmClient(url, retries=0) as client:
            while not self._stopping.wait(0.02):
                try:
                    answer = client.infer(hplm, "my cat is lovely")
                    self.outcomes["answered" if answer.hplm == hplm else f"{answer.hplm} answered for {hplm}"] += 1
                except Exception as error:
                    self.outcomes[f"{type(error).__name__}: {error}"] += 1


@contextlib.contextmanager
def fleet_of_two(home: Home) -> Iterator[Fleet]:
    command = [HPLM, "fleet", "serve", "--home", str(home.path), "--servers", "2", *FREE_PORTS]
    with (home.path / "stderr").open("w") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready:")), None)
        assert ready is not None, (home.path / "stderr").read_text()
        grpc_url, http_url, *_ = re.findall(r"(?:grpc|http)://[\d.:]+", ready)
        yield Fleet(home, process, (grpc_url, http_url))
    finally:
        process.kill()
        process.communicate()


def export(home: Home, **more: str) -> None:
    parameters = {"dtype": "fp32", "slots": "4", "threads": "1", **more}
    settings = ExportSettings(lower_instances=1, lower_parameters={"dtype": "fp32"}, upper_parameters=parameters)
    render_repository(home.repository, settings)


@pytest.fixture
def fleet(tiny_home: Home) -> Iterator[Fleet]:
    export(tiny_home)
    with fleet_of_two(tiny_home) as fleet:
        yield fleet


def test_a_killed_and_a_drained_server_cost_no_request(fleet: Fleet) -> None:
    second = fleet.command("serve", *FREE_PORTS)
    assert second.returncode == 4 and "a fleet runs on" in second.stderr
    closed_endpoints_stay_closed(fleet)
    with Load(fleet.urls) as load:
        time.sleep(2)
        victim = max(fleet.servers(), key=lambda each: each["requests"])
        assert victim["requests"] > 0
        psutil.Process(victim["pid"]).kill()
        fleet.wait_until_restarted(victim["server"])
        fleet.drain(victim["server"])
        last = next(each["server"] for each in fleet.servers() if each["server"] != victim["server"])
        refused = fleet.command("drain", last)
        assert refused.returncode == 4 and f"{last} is the last server that is ready" in refused.stderr
        fleet.drain(victim["server"], "--restart")
        upgraded_in_two_goes(fleet)
        time.sleep(1)
    assert load.outcomes.keys() == {"answered"}, f"{load.outcomes}\n{fleet.said()}"
    assert load.outcomes["answered"] > 200
    nothing_is_left_after_a_stop(fleet)


def upgraded_in_two_goes(fleet: Fleet) -> None:
    """A new export is applied to one server, the command is killed, and the next one goes on with the other."""
    before = {each["server"]: each["export"] for each in fleet.servers()}
    export(fleet.home, policy="das")
    command = [HPLM, "fleet", "apply", "--home", str(fleet.home.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        lines = [first.stderr.readline(), first.stderr.readline()]
        first.kill()
    assert "server-1: restarting (export" in lines[0] and "server-1: ready again" in lines[1], lines
    rest = fleet.command("apply")
    assert rest.returncode == 0 and "going on with an apply" in rest.stderr, rest.stderr
    # The first one may have ordered the second restart before it was killed.
    assert "server-1: restarting" not in rest.stderr
    after = {each["server"]: each["export"] for each in fleet.servers()}
    assert len(set(after.values())) == 1 and after != before
    assert fleet.command("apply").stdout == "nothing to do\n"


def closed_endpoints_stay_closed(fleet: Fleet) -> None:
    """What administers a server is not even passed on to it."""
    grpc_url, http_url = (url.partition("://")[2] for url in fleet.urls)
    with tritonclient.grpc.InferenceServerClient(grpc_url) as client:
        assert client.is_server_ready() and client.is_model_ready("hplm")
        with pytest.raises(InferenceServerException) as closed:
            client.get_model_repository_index()
        assert closed.value.status() == f"{grpc.StatusCode.UNIMPLEMENTED}"
    with tritonclient.http.InferenceServerClient(http_url) as web:
        assert web.is_server_ready() and web.is_model_ready("hplm")
        with pytest.raises(InferenceServerException, match="the gateway passes inference on the model hplm"):
            web.get_model_repository_index()


def nothing_is_left_after_a_stop(fleet: Fleet) -> None:
    before = psutil.Process(fleet.process.pid).children(recursive=True)
    folders = {Path(each.environ().get(FOLDER_VARIABLE, "")) for each in before if each.name() == "tritonserver"}
    fleet.process.terminate()
    assert fleet.process.wait(_PATIENCE_S) == 0
    said = fleet.said()
    assert said.rindex("server-1: stopped") < said.index("server-2: stopping") < said.rindex("server-2: stopped")
    assert not living(before)
    assert not [folder for folder in folders if list(SHARED_MEMORY.glob(f"{shm_prefix(folder)}*"))]
    assert fleet.command("status").returncode == 3
