"""Plans on disk: what is written is read again, and what is damaged, foreign or contradictory is one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.errors import (
    CorruptFileError,
    FingerprintMismatchError,
    FormatVersionError,
    InvalidArgumentError,
    NotFoundError,
)
from backends.home import Home
from backends.storage import write_json
from builder.placement.planner.change import Change, Moves, Step, groups_checksum
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Alternative, Plan
from builder.placement.planner.plan_file import plan_to_json, read_plan, write_plan

GPU = 16 << 30
STAGES = (Stack("large", 0, 5, 9 << 30), Stack("large", 5, 12, 9 << 30, stage=1))
PLAN = Plan(
    problem="7f",
    devices=(Device("a0", GPU, "a"), Device("a1", GPU, "a"), Device("b0", GPU, "b")),
    groups=(
        Group("g0", ("a0", "a1"), Shape(2), STAGES),
        Group("g1", ("b0",), Shape(), (Stack("base", 0, 12, 1 << 30), Stack("small", 0, 6, 1 << 20))),
    ),
    roots={"large": "aa", "base": "bb", "small": "cc"},
    verdict="large in 2 stages, the others on one device",
    decisions=("'large' takes 18 GB, more than a device has",),
    alternatives=(
        Alternative("this plan", 0.97, 0.96, 12.5, ((0.5, 1.0), (2.0, 0.8))),
        Alternative("all everywhere", None),
    ),
    seed=3,
)
CHANGE = Change(
    previous=groups_checksum(PLAN.groups),
    window_s=3_600.0,
    gain_points=2.5,
    gain_requests=900.0,
    cost_requests=12.5,
    moves=Moves(1, 1, 0, 30),
    costs=MoveCosts(),
    steps=(Step("b", (), (replace(PLAN.groups[1], stacks=PLAN.groups[1].stacks[:1]),), 15.7, 12.0, ("small",)),),
)
CHANGED = replace(PLAN, groups=CHANGE.steps[0].after(PLAN.groups), change=CHANGE)


@pytest.mark.parametrize("plan", [PLAN, CHANGED, replace(PLAN, change=replace(CHANGE, steps=()))])
def test_a_plan_is_read_as_it_was_written(plan: Plan, tmp_path: Path) -> None:
    path = Home(tmp_path).placement
    write_plan(path, plan)
    assert read_plan(path) == plan
    assert path == tmp_path / "profiles" / "placement.json"


def change(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def made(content: dict[str, Any]) -> None:
        at: Any = content
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return made


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (change("devices", to="many"), "devices is 'many', not a list"),
        (change("devices", 0, "memory_bytes", to=0), "device 'a0' has 0 bytes"),
        (change("devices", 1, "name", to="a0"), "device 'a0' is there twice"),
        (change("devices", 1, "host", to="b"), "several hosts"),
        (change("groups", 1, "devices", to=["a0"]), "device in groups 'a0' is there twice"),
        (change("groups", 1, "devices", to=["c0"]), "unknown device, 'c0'"),
        (change("groups", 1, "name", to="g0"), "group 'g0' is there twice"),
        (change("groups", 0, "shape", "stages", to=0), "stages is 0, not a whole number"),
        (change("groups", 0, "shape", "stages", to=3), "has 2 devices, and its shape 3 x 1 takes 3"),
        (change("groups", 0, "stacks", 1, "end_half", to=5), "more stages than half layers"),
        (change("groups", 0, "stacks", 1, "first_half", to=6), "one after the other"),
        (change("groups", 0, "stacks", 1, "stage", to=0), "one after the other"),
        (change("groups", 1, "stacks", 0, "size_bytes", to=GPU + 1), "which has 17,179,869,184"),
        (change("groups", 1, "stacks", 0, "root", to="huge"), "unknown root, 'huge'"),
        (change("alternatives", 0, "attainment", to=1.5), "attainment is 1.5, not a number from 0 to 1"),
        (change("seed", to=None), "seed is None"),
        (change("change", to="later"), "is 'later', not an object"),
        (change("change", "window_s", to=0), "window_s is 0, not above 0"),
        (change("change", "moves", "loads", to=-1), "loads is -1, not a whole number"),
        (change("change", "costs", "loaded_bytes_per_s", to=0), "no root would ever be loaded"),
        (change("change", "steps", 0, "groups", 0, "devices", to=["c0"]), "unknown device, 'c0'"),
        (change("change", "steps", 0, "groups", to=[]), "changes nothing"),
        (change("change", "steps", 0, "stops", to=["g1"]), "stops and has group 'g1'"),
    ],
)
def test_a_plan_that_contradicts_itself_is_damaged(
    damage: Callable[[dict[str, Any]], None], complaint: str, tmp_path: Path
) -> None:
    content = json.loads(json.dumps(plan_to_json(CHANGED)))
    damage(content)
    write_json(tmp_path / "placement.json", content)
    with pytest.raises(CorruptFileError, match=r"placement\.json") as caught:
        read_plan(tmp_path / "placement.json")
    assert complaint in str(caught.value)


def test_files_of_another_kind_format_or_of_broken_bytes_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    with pytest.raises(InvalidArgumentError, match=r"placement\.json: No such file"):
        read_plan(path)
    for foreign in (b"time_s,hplm\n0,acme/topic\n", b'{"hello": 1}', b"", b"\xff\xfe"):
        path.write_bytes(foreign)
        with pytest.raises(InvalidArgumentError, match=r"placement\.json is no plan of hplm place"):
            read_plan(path)
    write_json(path, {"format_version": 1, "model": {}})
    with pytest.raises(InvalidArgumentError, match="is no plan of hplm place"):
        read_plan(path)
    write_plan(path, PLAN)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(CorruptFileError, match="truncated"):
        read_plan(path)
    write_json(path, {**plan_to_json(PLAN), "format_version": 2})
    with pytest.raises(FormatVersionError, match="reads up to 1"):
        read_plan(path)
    write_plan(path, PLAN)
    path.write_bytes(path.read_bytes().replace(b"large", b"larger", 1))
    with pytest.raises(CorruptFileError, match="checksum"):
        read_plan(path)


def test_a_plan_is_of_one_home() -> None:
    fingerprints = {"large": "aa", "base": "bb", "small": "cc", "more": "dd"}
    PLAN.check_home(fingerprints)
    with pytest.raises(NotFoundError, match="'small', which this home does not have"):
        PLAN.check_home({name: fingerprints[name] for name in ("large", "base")})
    with pytest.raises(FingerprintMismatchError, match="another root 'base'"):
        PLAN.check_home({**fingerprints, "base": "0"})


@pytest.mark.parametrize("memory", [0, -1])
def test_a_device_has_memory(memory: int) -> None:
    with pytest.raises(InvalidArgumentError, match="needs more than 0"):
        Device("a0", memory)


def test_a_plan_of_before_there_were_changes_is_read(tmp_path: Path) -> None:
    content = plan_to_json(PLAN)
    del content["change"]
    write_json(tmp_path / "placement.json", content)
    assert read_plan(tmp_path / "placement.json") == PLAN


def test_groups_of_a_root() -> None:
    assert [group.name for group in PLAN.groups_of("large")] == ["g0"]
    assert PLAN.groups[0].stage_bytes(1) == 9 << 30 and PLAN.groups[0].devices_of(1) == ("a1",)
    with pytest.raises(InvalidArgumentError, match="1 to 64 stages"):
        replace(PLAN.groups[0].shape, ways=0)
