"""Descriptions of workloads, traces, cost models and placements, as simulations and load tests read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from backends.errors import HplmError
from backends.home import Home
from backends.scheduling.cost_model import OPTIMISTIC
from backends.scheduling.cost_profile import CostProfile, Measured, read_profile, write_profile
from backends.scheduling.settings import Capacity
from backends.storage import read_errors_are_clear
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.json_values import bad_json, encoded
from bench.kit.fuzz.target import Target
from builder.placement.cost_file import read_cost_model
from builder.placement.described_workload import DescribedWorkload, Machine
from builder.placement.planner.change import Change, Moves, Step
from builder.placement.planner.group import Device, Group, Shape, Stack
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Alternative, Plan
from builder.placement.planner.plan_file import read_plan, write_plan
from workload.errors import WorkloadError
from workload.forms import read_duration_s
from workload.traces import read_trace

_ARRIVALS = ("poisson", "even", "gamma:cv=2", "bursts:ratio=9,stay=2s", "mmpp:9:2")
_LOADS = ("200/s", "1.5x", "20", None)
_LENGTHS = ("normal:deviation=20,mean=20", "fixed:tokens=20", "trace")
_TENANTS = ("uniform:count=1000", "zipf:count=1000,exponent=1", "zipf:50", "trace")
_DEADLINES = ("200ms", "100ms-400ms", "5x-20x", None)
_CSV = "TIMESTAMP,ContextTokens,tenant\n2024-05-10 00:00:00.1,12,a\n2024-05-10 00:00:01,30,b\n2024-05-10 00:00:02,1,a\n"
_JSONL = [{"timestamp": 0, "input_length": 6, "group": "a"}, {"timestamp": 1500, "input_length": 600, "group": "b"}]
_MACHINE = Machine(OPTIMISTIC, Capacity())
_GROUP = Group("g0", ("a0", "a1"), Shape(2), (Stack("mini", 0, 5, 7), Stack("mini", 5, 12, 9, stage=1)))
_STEPS = (Step("a", ("g1",), (_GROUP,), 14.7, 2.5, ("mini",)),)
_CHANGE = Change("7f", 3_600.0, 2.0, 90.0, 4.0, Moves(1, 0, 1, 3), MoveCosts(), _STEPS)
_PLAN = Plan(
    *("7f", (Device("a0", 99, "a"), Device("a1", 99, "a")), (_GROUP,), {"mini": "aa"}, "one group", ("why",)),
    *((Alternative("this plan", 0.9, None, 3.0),), 3, _CHANGE),
)
_SPECIAL = ("nan", "inf", "-1", "0", "1e999", "1e-320", "9" * 400, "1_0", "１２", "", "1e18", "5x", "3h")


class Loads(Target):
    """Texts of the workload language, trace files, cost files and placements with damage."""

    name = "loads"
    cases = 80_000
    rejections = (HplmError, WorkloadError)

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._csv, self._jsonl = scratch / "trace.csv", scratch / "trace.jsonl"
        self._cost = scratch / "cost.json"
        measured = Measured("0" * 16, "cpu", "fp32", "ragged", 2)
        write_profile(scratch / "profile", CostProfile(OPTIMISTIC, measured, "2.13", 100, 5.0))
        self._profile = BadFolder(scratch / "profile", scratch / "profile")
        write_plan(scratch / "placement" / "placement.json", _PLAN)
        self._placement = BadFolder(scratch / "placement", scratch / "placement")

    def attempt(self, draw: Draw) -> None:
        reads: Sequence[Callable[[Draw], None]] = (
            *(self._described, self._described, self._traced, self._costed, self._placed),
        )
        draw.choice(reads)(draw)

    def _described(self, draw: Draw) -> None:
        chosen = (_text(draw, _ARRIVALS), _text(draw, _LOADS), _text(draw, _LENGTHS), _text(draw, _TENANTS))
        workload = DescribedWorkload(
            chosen[0] or "poisson",
            chosen[1],
            chosen[2] or "",
            chosen[3] or "",
            _text(draw, _DEADLINES),
            draw.decimal() if draw.happens(0.2) else 0.0,
            draw.decimal() if draw.happens(0.2) else 1.0,
        )
        duration_s = workload.duration_s(None if draw.happens(0.1) else read_duration_s("2s", "duration"))
        drawn = workload.on(_MACHINE)
        if draw.happens(0.05):
            drawn.draw(min(0.01, duration_s), draw.randrange(100))

    def _traced(self, draw: Draw) -> None:
        if draw.happens(0.5):
            path, content = self._csv, encoded(draw, draw.edited(_CSV))
        else:
            lines = [json.dumps(row) for row in _JSONL]
            lines.insert(draw.randrange(3), bad_json(draw, draw.choice(_JSONL)))
            path, content = self._jsonl, encoded(draw, "\n".join(lines))
        path.write_bytes(content)
        read_trace(path)

    def _costed(self, draw: Draw) -> None:
        if draw.happens(0.5):
            self._cost.write_bytes(encoded(draw, bad_json(draw, OPTIMISTIC.to_json())))
            read_cost_model(self._cost)
            return
        with self._profile.damaged(draw) as folder, read_errors_are_clear(folder):
            read_profile(folder)

    def _placed(self, draw: Draw) -> None:
        with self._placement.damaged(draw) as folder, read_errors_are_clear(folder):
            read_plan(folder / "placement.json").require_devices(_PLAN.devices)


def _text(draw: Draw, good: Sequence[str | None]) -> str | None:
    chosen = draw.choice(good)
    if chosen is None or draw.happens(0.6):
        return chosen
    if draw.happens(0.5):
        head, colon, tail = chosen.rpartition(draw.choice(("=", ":", "-")))
        return f"{head}{colon}{draw.choice(_SPECIAL)}" if colon else f"{tail}:{draw.choice(_SPECIAL)}"
    return draw.text([chosen])
