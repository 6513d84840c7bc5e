"""`hplm fleet`: two real servers behind the real gateway; one is killed, one drained, and no request fails."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from backends.home import Home
from backends.server_folder import FOLDER_VARIABLE
from builder.serving.run_folder import SHARED_MEMORY, shm_prefix
from living_processes import living
from served_fleet import FREE_PORTS, HPLM, PATIENCE_S, Fleet, Load, export, fleet_of_two

pytestmark = [pytest.mark.server, pytest.mark.long]


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
    assert fleet.process.wait(PATIENCE_S) == 0
    said = fleet.said()
    assert said.rindex("server-1: stopped") < said.index("server-2: stopping") < said.rindex("server-2: stopped")
    assert not living(before)
    assert not [folder for folder in folders if list(SHARED_MEMORY.glob(f"{shm_prefix(folder)}*"))]
    assert fleet.command("status").returncode == 3
