"""`hplm fleet apply --placement` where a host of the plan is unknown, dead or silent: nothing half-way, then again."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

import cli
from backends.home import Home
from backends.registry.registry import Registry
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet import apply as apply_module
from builder.fleet import control
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.plan import Plan
from builder.placement.planner.plan_file import write_plan
from read_only import everything_in
from stand_in_fleet import StandInFleet

GB = 1 << 30


class Done(NamedTuple):
    code: int
    out: str
    err: str


Apply = Callable[..., Done]


@pytest.fixture
def home(tiny_home: Home) -> Home:
    render_repository(tiny_home.repository, ExportSettings())
    return tiny_home


@pytest.fixture
def plan(home: Home, tmp_path: Path) -> Path:
    """One device of host alpha, two of host beta, of which the second holds nothing."""
    with closing(Registry.open(home)) as registry:
        fingerprint = registry.root("tiny").fingerprint
    hosts = ("alpha", "beta", "beta")
    stacks = ((Stack("tiny", 0, 4, 1 << 20),), (Stack("tiny", 0, 4, 1 << 20),), ())
    made = Plan(
        problem="7f",
        devices=tuple(Device(f"d{number}", GB, host) for number, host in enumerate(hosts)),
        groups=tuple(Group(f"g{number}", (f"d{number}",), Shape(), held) for number, held in enumerate(stacks)),
        roots={"tiny": fingerprint},
        verdict="",
        decisions=(),
        alternatives=(),
        seed=1,
    )
    path = tmp_path / "plan.json"
    write_plan(path, made)
    return path


@pytest.fixture
def apply(home: Home, plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Apply:
    monkeypatch.setattr(apply_module, "_POLL_S", 0.005)

    def applied(*options: str) -> Done:
        command = ["hplm", "fleet", "apply", "--home", str(home.path), "--placement", str(plan), *options]
        monkeypatch.setattr(sys, "argv", command)
        code: object = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return applied


def test_a_host_that_the_plan_does_not_know(home: Home, apply: Apply) -> None:
    with StandInFleet(home, 2) as fleet:
        before = everything_in(home.run)
        unknown, unsaid = apply("--host", "gamma"), apply()
        says = "hplm: the placement is for the hosts alpha, beta: --host,"
        assert (unknown.code, unsaid.code) == (2, 2)
        assert unknown.err == f"{says} 'gamma' is none of them\n"
        assert unsaid.err == f"{says} which of them is this one\n"
        other = apply("--host", "alpha")
        assert other.code == 2 and "has 1 groups of devices here, and the fleet 2 servers" in other.err
        assert everything_in(home.run) == before and fleet.restarted == []
        assert apply("--host", "beta").out == "restarted 1 of 2 servers\n"
        assert fleet.restarted == ["server-2"]


def test_a_host_whose_fleet_has_died(home: Home, apply: Apply) -> None:
    """As after kill -9: the file that says who runs is still there, and nobody holds the lock."""
    with StandInFleet(home, 2):
        pass
    before = everything_in(home.run)
    dead = apply("--host", "beta")
    assert (dead.code, dead.out) == (3, "")
    assert dead.err == (
        f"hplm: no fleet runs on {home.path}: the last one, process 7 of {socket.gethostname()}, has ended; "
        "hplm fleet serve starts one\n"
    )
    assert everything_in(home.run) == before
    with StandInFleet(home, 2) as back:
        assert apply("--host", "beta").out == "restarted 1 of 2 servers\n"
        assert back.entries["server-2"].roots == ()


def test_a_host_that_dies_meanwhile(home: Home, apply: Apply) -> None:
    with StandInFleet(home, 2) as fleet:
        fleet.set("server-1", "failed", "it ran out of luck")  # so both are to be restarted, this one first

        def die(name: str) -> None:
            if name == "server-2":
                fleet.end()
                raise ConnectionResetError(name)

        fleet.before_restart = die
        cut = apply("--host", "beta")
        assert (cut.code, cut.out) == (5, "")
        *_, last = cut.err.splitlines()
        assert last.startswith("hplm: the fleet at http://127.0.0.1:") and "does not answer: " in last
        assert last.endswith("; when it is back, run hplm fleet apply again: it goes on there")
        assert fleet.restarted == ["server-1"] and fleet.entries["server-2"].roots is None
        assert apply("--host", "beta").code == 3
    with StandInFleet(home, 2) as back:
        assert back.entries["server-2"].roots == (), "a fleet that is started anew has what was wanted"
        again = apply("--host", "beta")
        assert (again.code, again.out, back.restarted) == (0, "nothing to restart\n", [])
        assert not back.folder.journal.exists()


def test_a_host_that_hangs_meanwhile(home: Home, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process still has its port and its lock; connections to it wait for ever."""
    monkeypatch.setattr(control, "_ANSWERS_S", 0.2)
    with StandInFleet(home, 2) as fleet, socket.create_server(("127.0.0.1", 0)) as silent:
        fleet.write(health=f"http://127.0.0.1:{silent.getsockname()[1]}")
        hung = apply("--host", "beta")
        assert (hung.code, hung.out) == (5, "")
        assert "does not answer: timed out; when it is back, run hplm fleet apply again" in hung.err
        assert fleet.restarted == []
        fleet.write()
        again = apply("--host", "beta")
        assert "going on with an apply that did not finish" in again.err
        assert again.out == "restarted 1 of 2 servers\n" and fleet.restarted == ["server-2"]


@pytest.mark.parametrize("is_ordering", [False, True])
def test_a_fleet_whose_loop_hangs(home: Home, apply: Apply, is_ordering: bool) -> None:
    """Its health port has threads of its own and goes on answering; no order is waited for then."""
    with StandInFleet(home, 2) as fleet:
        fleet.why_it_hangs, fleet.is_ordering = ["the fleet has done nothing for 60 s"], is_ordering
        fleet.write()
        hung = apply("--host", "beta")
        assert (hung.code, hung.out, fleet.restarted) == (5, "", [])
        assert "hangs: the fleet has done nothing for 60 s" in hung.err


def test_a_host_that_is_another_machine(home: Home, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandInFleet(home, 2) as fleet:
        before, here = everything_in(home.run), socket.gethostname()
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("builder.fleet.control.socket.gethostname", lambda: "beta")
            far = apply("--host", "beta")
        assert (far.code, far.out) == (5, "")
        assert far.err == f"hplm: the fleet runs on {here}, and takes orders only there; this is beta\n"
        assert everything_in(home.run) == before and fleet.restarted == []
        assert apply("--host", "beta").out == "restarted 1 of 2 servers\n"
