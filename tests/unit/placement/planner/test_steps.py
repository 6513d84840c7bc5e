"""The steps of a change: where they lead, what they interrupt, and that no other order interrupts less."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest

from builder.placement.planner.change import Step
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.steps import named_as_before, steps_between

COSTS = MoveCosts(reload_s=3.0, reshape_s=7.0, loaded_bytes_per_s=100.0)
ROOTS = "abcde"


def group_of(devices: Sequence[str], roots: Sequence[str], name: str = "", size: int = 100) -> Group:
    """Cut each root evenly in as many stages as there are devices."""
    count = len(devices)
    stacks = [
        Stack(root, 12 * stage // count, 12 * (stage + 1) // count, size // count, stage=stage)
        for root in roots
        for stage in range(count)
    ]
    return Group(name or devices[0], tuple(devices), Shape(count), tuple(stacks))


def devices_of(count: int, memory_bytes: int = 1_000, hosts: int = 2) -> list[Device]:
    return [Device(f"d{number}", memory_bytes, f"h{number * hosts // count}") for number in range(count)]


def random_groups(chance: random.Random, devices: Sequence[Device]) -> list[Group]:
    """Groups of one or two neighbours of a host, each with some roots; a device may stand idle."""
    found, place = [], 0
    while place < len(devices):
        size = chance.choice([1, 1, 2])
        names = [device.name for device in devices[place : place + size] if device.host == devices[place].host]
        place += len(names)
        if chance.random() < 0.9:
            found.append(group_of(names, chance.sample(ROOTS, chance.randint(1, 3))))
    return found


def held_by(groups: Sequence[Group]) -> dict[str, set[str]]:
    return {group.name: set(group.roots) for group in groups}


def as_they_run(groups: Sequence[Group]) -> set[tuple[str, tuple[str, ...], frozenset[Stack]]]:
    return {(group.name, group.devices, frozenset(group.stacks)) for group in groups}


def missing_in(step: Step, groups: Sequence[Group], after: Sequence[Group]) -> set[str]:
    """Say which roots stand nowhere while the step is made, of those that stood somewhere and are to go on."""
    touched = set(step.stops) | {group.name for group in step.groups}
    serving = {root for group in groups if group.name not in touched for root in group.roots}
    return {root for group in after for root in group.roots} - serving


def interrupted(
    steps: Sequence[Step], before: Sequence[Group], after: Sequence[Group], rates: Mapping[str, float]
) -> float:
    groups, total = tuple(before), 0.0
    known = {root for group in before for root in group.roots}
    for step in steps:
        total += step.takes_s * sum(rates[root] for root in missing_in(step, groups, after) & known)
        groups = step.after(groups)
    return total


def random_change(chance: random.Random, count: int) -> tuple[list[Device], list[Group], tuple[Group, ...]]:
    devices = devices_of(count)
    before = random_groups(chance, devices)
    return devices, before, named_as_before(before, random_groups(chance, devices))


def test_steps_lead_from_one_placement_to_the_other(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        devices, before, after = random_change(chance, chance.choice([1, 3, 6, 14]))
        rates = {root: chance.random() for root in ROOTS}
        memory = {device.name: device.memory_bytes for device in devices}
        host_of = {device.name: device.host for device in devices}
        groups = tuple(before)
        for step in steps_between(before, after, devices, COSTS, rates):
            names = {group.name: group for group in groups}
            touched = [names[name] for name in step.stops] + [*step.groups]
            assert {host_of[device] for group in touched for device in group.devices} == {step.host}
            known = {root for group in before for root in group.roots}
            assert set(step.interrupts) == missing_in(step, groups, after) & known
            groups = step.after(groups)
            used = [device for group in groups for device in group.devices]
            assert len(set(used)) == len(used)
            for group in groups:
                for stage in range(group.shape.stages):
                    assert all(group.stage_bytes(stage) <= memory[name] for name in group.devices_of(stage))
        assert as_they_run(groups) == as_they_run(after)


def test_no_other_order_interrupts_less(seed: int) -> None:
    chance = random.Random(seed)
    worst, least = 0.0, 0.0
    for _ in range(30):
        devices, before, after = random_change(chance, 5)
        rates = {root: float(chance.randint(1, 9)) for root in ROOTS}
        steps = steps_between(before, after, devices, COSTS, rates)
        totals = [interrupted(order, before, after, rates) for order in permutations(steps)]
        assert interrupted(steps, before, after, rates) == pytest.approx(min(totals))
        worst, least = worst + max(totals), least + min(totals)
    assert least < worst, "the order matters"


def test_a_chain_is_changed_from_its_free_end() -> None:
    """On d2 b makes room for a; b goes to d0, where a stands twice."""
    devices = devices_of(3, memory_bytes=100)
    before = [group_of(["d0"], ["a"]), group_of(["d1"], ["a"]), group_of(["d2"], ["b"])]
    after = named_as_before(before, [group_of(["d0"], ["b"]), group_of(["d1"], ["c"]), group_of(["d2"], ["a"])])
    steps = steps_between(before, after, devices, COSTS, dict.fromkeys("abc", 1.0))
    assert [step.groups[0].name for step in steps] == ["d0", "d2", "d1"]
    assert not any(step.interrupts for step in steps)


def test_what_no_order_avoids_is_named() -> None:
    """Two roots change places; the one that is asked less is interrupted, from its own step to the end of the other."""
    before = [group_of(["d0"], ["a"]), group_of(["d1"], ["b"])]
    after = named_as_before(before, [group_of(["d0"], ["b"]), group_of(["d1"], ["a"])])
    steps = steps_between(before, after, devices_of(2), COSTS, {"a": 1.0, "b": 5.0})
    assert [(step.groups[0].name, step.interrupts) for step in steps] == [("d0", ("a",)), ("d1", ("a",))]
    assert [step.cost_requests for step in steps] == pytest.approx([4 * 1.0, 4 * (5.0 / 2 + 1.0)])


def test_what_a_step_takes_and_costs() -> None:
    """Half of the requests for `a` meet the group that is away; `b` is given up, and no loss."""
    before = [group_of(["d0"], ["a", "b"]), group_of(["d1"], ["a"]), group_of(["d2", "d3"], ["c"])]
    after = named_as_before(
        before,
        [group_of(["d0"], ["a", "c"]), group_of(["d1"], ["a"]), group_of(["d2"], ["c"]), group_of(["d3"], ["c"])],
    )
    reload, reshape = steps_between(before, after, devices_of(4), COSTS, {"a": 8.0, "b": 50.0, "c": 3.0})
    assert (reload.stops, [group.name for group in reload.groups]) == ((), ["d0"])
    assert reload.takes_s == pytest.approx(3.0 + 200 / 100) and reload.cost_requests == pytest.approx(5 * 8.0 / 2)
    assert reshape.stops == ("d2",) and [group.devices for group in reshape.groups] == [("d2",), ("d3",)]
    assert reshape.takes_s == pytest.approx(7.0 + 100 / 100) and reshape.cost_requests == pytest.approx(8 * 3.0 / 2)


def test_like_placements_need_no_step() -> None:
    before = [group_of(["d0", "d1"], ["a", "b"], "g7"), group_of(["d2"], ["c"], "g9")]
    same = named_as_before(before, [group_of(["d2"], ["c"], "g0"), group_of(["d0", "d1"], ["b", "a"], "g1", size=102)])
    assert [group.name for group in same] == ["g9", "g7"]
    assert steps_between(before, same, devices_of(3, hosts=1), COSTS, {}) == ()
    other = named_as_before(before, [group_of(["d0"], ["a"]), group_of(["d1", "d2"], ["c"])])
    assert [group.name for group in other] == ["g0", "g1"]
