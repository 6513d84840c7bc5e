"""A placement on two real servers: requests for each root are answered by the server that holds it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import tiny_hplm, tiny_root
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.plan import Plan
from builder.placement.planner.plan_file import write_plan
from hplm_client import HplmClient
from served_fleet import Fleet, Load, export, fleet_of_two

pytestmark = [pytest.mark.server, pytest.mark.long]
OF_TINY = ("acme/topic", "globex/topic", "initech/mood")
OF_TWIN = ("umbrella/topic", "acme/twin")
"""The second one's tenant has most of its hPLMs on the other root."""
TEXT = "my cat is lovely"


@pytest.fixture
def home(tiny_home: Home, tmp_path: Path) -> Home:
    """Two roots, of other weights each."""
    work = tmp_path / "work"
    work.mkdir()
    with closing(Registry.open(tiny_home)) as registry:
        tiny_root(tiny_home, registry, work, "twin", seed=7)
        for seed, hplm in enumerate(OF_TWIN):
            tiny_hplm(tiny_home, registry, work, hplm, "general", "topic", seed, "twin")
    export(tiny_home)
    return tiny_home


@pytest.fixture
def fleet(home: Home) -> Iterator[Fleet]:
    with fleet_of_two(home) as fleet:
        yield fleet


def plan_of(home: Home, roots: tuple[str, str], path: Path) -> Path:
    """Write a plan with one root for each server."""
    with closing(Registry.open(home)) as registry:
        fingerprints = {entry.name: entry.fingerprint for entry in registry.roots()}
    groups = [
        Group(f"g{index}", (f"d{index}",), Shape(), (Stack(root, 0, 4, 1 << 20),)) for index, root in enumerate(roots)
    ]
    made = Plan(
        problem="7f",
        devices=(Device("d0", 1 << 30), Device("d1", 1 << 30)),
        groups=tuple(groups),
        roots=fingerprints,
        verdict="",
        decisions=(),
        alternatives=(),
        seed=1,
    )
    write_plan(path, made)
    return path


def answered_by(fleet: Fleet, hplm: str) -> tuple[str, ...]:
    """The servers that the gateway sends an hPLM's requests to, over both protocols."""
    before = {each["server"]: each["requests"] for each in fleet.servers()}
    for url in fleet.urls:
        with HplmClient(url, retries=0) as client:
            for _ in range(10):
                assert client.infer(hplm, TEXT).hplm == hplm
    return tuple(each["server"] for each in fleet.servers() if each["requests"] > before[each["server"]])


def applied(fleet: Fleet, plan: Path) -> str:
    done = fleet.command("apply", "--placement", str(plan))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_root_is_answered_by_the_server_that_holds_it(fleet: Fleet, home: Home, tmp_path: Path) -> None:
    plan = plan_of(home, ("tiny", "twin"), tmp_path / "plan.json")
    with Load(fleet.urls, (*OF_TINY, *OF_TWIN)) as load:
        time.sleep(1)
        assert applied(fleet, plan) == "restarted 2 of 2 servers\n"
        time.sleep(1)
    assert load.outcomes.keys() == {"answered"}, f"{load.outcomes}\n{fleet.said()}"
    assert {each["server"]: each["roots"] for each in fleet.servers()} == {"server-1": ["tiny"], "server-2": ["twin"]}
    each_is_answered_by(fleet, "server-1", "server-2")
    assert applied(fleet, plan) == "nothing to restart\n"

    psutil.Process(fleet.servers()[1]["pid"]).kill()
    with HplmClient(fleet.urls[0]) as client:
        assert client.infer(OF_TWIN[0], TEXT).hplm == OF_TWIN[0], "the other server loads the root"
    fleet.wait_until_restarted("server-2")
    each_is_answered_by(fleet, "server-1", "server-2")

    other_way = plan_of(home, ("twin", "tiny"), tmp_path / "other.json")
    assert applied(fleet, other_way) == "restarted 2 of 2 servers\n"
    each_is_answered_by(fleet, "server-2", "server-1")


def each_is_answered_by(fleet: Fleet, tiny: str, twin: str) -> None:
    found = {hplm: answered_by(fleet, hplm) for hplm in (*OF_TINY, *OF_TWIN)}
    assert found == dict.fromkeys(OF_TINY, (tiny,)) | dict.fromkeys(OF_TWIN, (twin,)), fleet.said()
