"""A placement on the servers of a fleet: who holds what by a plan, and whom the gateway asks by that."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from backends.held_roots import ROOTS_VARIABLE, held_roots, roots_environment
from backends.home import Home
from backends.registry.registry import Registry
from builder.fleet.fleet_placement import FleetPlacement, levels_apart
from builder.fleet.gateway_files import GatewayFiles
from builder.fleet.routing import Routing
from builder.placement.planner.change import Change, Moves, Step, groups_checksum
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Plan
from builder.serving.served_hplms import some_hplms

GB = 1 << 30
BASE, SMALL = Stack("base", 0, 12, GB), Stack("small", 0, 6, GB)
PLAN = Plan(
    problem="7f",
    devices=(Device("a0", 4 * GB, "a"), Device("a1", 4 * GB, "a")),
    groups=(Group("g0", ("a0",), Shape(), (BASE, SMALL)), Group("g1", ("a1",), Shape(), (SMALL,))),
    roots={"base": "aa", "small": "bb"},
    verdict="",
    decisions=(),
    alternatives=(),
    seed=1,
)
TWO_HOSTS = replace(PLAN, devices=(PLAN.devices[0], replace(PLAN.devices[1], host="b")))
STAGES = (Stack("base", 0, 6, GB), Stack("base", 6, 12, GB, stage=1))
CUT = replace(PLAN, groups=(Group("g0", ("a0", "a1"), Shape(2), STAGES),))
SERVERS = ["server-1", "server-2"]


def placed(plan: Plan, servers: list[str] = SERVERS, host: str | None = None) -> FleetPlacement:
    return FleetPlacement.of_plan(plan, servers, ["base", "small"], host)


def test_groups_go_to_servers_in_their_order() -> None:
    found = placed(PLAN)
    assert (found.roots_of("server-1"), found.roots_of("server-2")) == (None, ("small",))
    assert FleetPlacement.of_plan(PLAN, SERVERS, ["base", "small", "new"], None).roots_of("server-1") == (
        "base",
        "small",
    )


def test_of_several_hosts_one_is_chosen() -> None:
    assert placed(TWO_HOSTS, ["server-1"], "b").roots == {"server-1": ("small",)}


def test_servers_are_changed_in_the_order_of_the_steps() -> None:
    steps = tuple(
        Step(device.host, (), (group,), 15.0) for device, group in zip(PLAN.devices, PLAN.groups, strict=True)
    )
    change = Change("7f", 3600.0, 2.0, 100.0, 10.0, Moves(1, 2, 0, 0), MoveCosts(), steps[::-1])
    assert placed(PLAN).order == ()
    assert placed(replace(PLAN, change=change)).order == ("server-2", "server-1")
    of_host = tuple(replace(step, host=device.host) for step, device in zip(steps, TWO_HOSTS.devices, strict=True))
    assert placed(replace(TWO_HOSTS, change=replace(change, steps=of_host)), ["server-1"], "b").order == ("server-1",)


def test_a_plan_that_begins_elsewhere_is_told(tmp_path: Path) -> None:
    moves = Change("7f", 3600.0, 2.0, 100.0, 10.0, Moves(1, 2, 0, 0), MoveCosts(), ())
    first, path = placed(PLAN), tmp_path / "placement.json"
    first.write(path)
    in_force = FleetPlacement.read(path)
    assert in_force == first and in_force.groups == groups_checksum(PLAN.groups)
    after_it = replace(TWO_HOSTS, groups=PLAN.groups[::-1][:1], change=replace(moves, previous=in_force.groups))
    assert in_force.why_out_of_order(after_it) is None
    assert in_force.why_out_of_order(PLAN) is None, "it has no steps"
    for other in (FleetPlacement(), replace(in_force, groups="another")):
        assert "begins with another placement" in str(other.why_out_of_order(after_it))
    assert FleetPlacement({"server-1": ()}).why_out_of_order(after_it) is None, "an earlier release wrote it"
    assert replace(first, groups=groups_checksum(after_it.groups)).why_out_of_order(after_it) is None, "applied again"


def test_a_group_with_some_levels_of_a_root_is_told() -> None:
    students = replace(BASE, level="students")
    together = replace(PLAN, groups=(Group("g0", ("a0",), Shape(), (BASE, students)), PLAN.groups[1]))
    assert levels_apart(PLAN) == levels_apart(together) == []
    (said,) = levels_apart(replace(together, groups=(together.groups[0], Group("g1", ("a1",), Shape(), (students,)))))
    assert said.startswith("group 'g1' holds base/students without base; a server loads all levels")


@pytest.mark.parametrize(
    ("plan", "servers", "host", "message"),
    [
        (PLAN, ["server-1"], None, "has 2 groups of devices here, and the fleet 1 servers; start it with --servers 2"),
        (PLAN, SERVERS, "c", "for the hosts a: --host, 'c' is none of them"),
        (TWO_HOSTS, SERVERS, None, "for the hosts a, b: --host, which of them is this one"),
        (TWO_HOSTS, SERVERS, "a", "has 1 groups of devices here, and the fleet 2 servers"),
        (CUT, ["server-1"], None, "group 'g0' of the placement cuts its roots in 2 stages of 1 devices"),
    ],
)
def test_plans_that_this_fleet_cannot_do(plan: Plan, servers: list[str], host: str | None, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        placed(plan, servers, host)


def test_a_placement_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "fleet" / "placement.json"
    assert FleetPlacement.read(path) == FleetPlacement()
    for placement in (
        FleetPlacement({"server-1": ("base",), "server-2": ()}, ("server-2", "server-1")),
        FleetPlacement({"server-1": ("base",)}),
        FleetPlacement({"server-1": ("base",)}, groups="7f", servers=("server-1", "server-2")),
        FleetPlacement(),
    ):
        placement.write(path)
        assert FleetPlacement.read(path) == placement


@pytest.mark.parametrize("roots", [None, (), ("base",), ("base", "small")])
def test_a_server_is_told_what_it_holds(monkeypatch: pytest.MonkeyPatch, roots: tuple[str, ...] | None) -> None:
    monkeypatch.delenv(ROOTS_VARIABLE, raising=False)
    for name, value in roots_environment(roots).items():
        monkeypatch.setenv(name, value)
    assert held_roots() == roots


def test_the_canary_asks_only_for_what_is_held(tiny_home: Home) -> None:
    assert some_hplms(tiny_home, ("tiny",)) == some_hplms(tiny_home)
    assert some_hplms(tiny_home, ("other",)) == some_hplms(tiny_home, ()) == []


def asked(routing: Routing, hplm: str) -> tuple[str, ...]:
    """What the gateway is told to do: look for the hPLM, then for its tenant, else ask any."""
    return routing.of_hplm.get(hplm, routing.of_tenant.get(hplm.partition("/")[0], ()))


def test_each_request_goes_to_servers_that_hold_its_root(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        roots = [f"root-{number}" for number in range(rng.randint(1, 5))]
        held = {
            f"server-{number}": rng.choice([None, tuple(rng.sample(roots, rng.randint(0, len(roots))))])
            for number in range(rng.randint(1, 4))
        }
        root_of = {f"tenant-{rng.randrange(4)}/hplm-{number}": rng.choice(roots) for number in range(rng.randint(0, 9))}
        routing = Routing.of(held, root_of)
        for hplm, root in root_of.items():
            holders = tuple(sorted(name for name, own in held.items() if own is None or root in own))
            assert asked(routing, hplm) == (holders if len(holders) < len(held) else ())
        assert len(routing.of_hplm) <= len(root_of) - len(routing.of_tenant)
        assert () not in routing.groups


def test_a_new_hplm_goes_where_those_of_its_tenant_are() -> None:
    held = {"server-1": ("base",), "server-2": ("small",)}
    routing = Routing.of(held, {"acme/a": "base", "acme/b": "base", "acme/c": "small", "globex/a": "small"})
    assert routing.of_tenant == {"acme": ("server-1",), "globex": ("server-2",)}
    assert routing.of_hplm == {"acme/c": ("server-2",)}
    assert asked(routing, "acme/new") == ("server-1",)
    assert asked(routing, "initech/new") == ()


def test_where_all_hold_all_nothing_is_named() -> None:
    assert Routing.of({"server-1": None, "server-2": ("base",)}, {"acme/a": "base"}) == Routing()


def test_many_hplms_take_little_room(tmp_path: Path) -> None:
    root_of = {f"tenant-{number}/task": ("base", "small")[number % 2] for number in range(10_000)}
    files = GatewayFiles(tmp_path, 125, [])
    files.write_routes(Routing.of({"server-1": ("base",), "server-2": ("small",)}, root_of))
    assert (tmp_path / "grpc.json").stat().st_size < 4 << 20


def test_the_home_s_registry_says_which_root_an_hplm_has(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    root_of = {entry.id: entry.domain.root for entry in registry.hplms()}
    registry.close()
    routing = Routing.of({"server-1": ("tiny",), "server-2": ()}, root_of)
    assert routing.of_tenant == dict.fromkeys(("acme", "globex", "initech"), ("server-1",))
