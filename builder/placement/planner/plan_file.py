"""A plan as a file of its home: `profiles/placement.json`, which `hplm fleet apply` and `hplm place --from` read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.fields import Fields, read_fields
from backends.storage import write_json
from builder.placement.planner.change import Change, Moves, Step
from builder.placement.planner.group import MOST_STAGES, Device, Group, Shape, Stack
from builder.placement.planner.move_costs import MoveCosts
from builder.placement.planner.plan import Alternative, Plan

FORMAT_VERSION = 1
_FIRST_FIELD = b'"alternatives"'
"""Of those of a plan, which are sorted: one that was cut short has it too."""


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **asdict(plan)}


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan; an old one is replaced in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, plan_to_json(plan))


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        InvalidArgumentError: There is no such file, or it is no plan.
        FileError: It is damaged, contradicts itself, or is of a newer format.
    """
    _require_plan(path)
    stored = read_fields(path, FORMAT_VERSION)
    with _contradictions_are_damage(path):
        return Plan(
            problem=stored.text("problem"),
            devices=tuple(map(_device, stored.parts("devices"))),
            groups=tuple(map(_group, stored.parts("groups"))),
            roots=_roots(stored.part("roots")),
            verdict=stored.text("verdict"),
            decisions=stored.texts("decisions"),
            alternatives=tuple(map(_alternative, stored.parts("alternatives"))),
            seed=stored.whole("seed"),
            change=None if stored.get("change") is None else _change(stored.part("change")),
        )


def _require_plan(path: Path) -> None:
    """Tell a file of another kind from a damaged plan, which begins as `write_plan` begins."""
    try:
        is_plan = _FIRST_FIELD in path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    if not is_plan:
        raise InvalidArgumentError(f"{path} is no plan of hplm place")


@contextmanager
def _contradictions_are_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except InvalidArgumentError as error:
        raise CorruptFileError(f"{path} is no placement: {error}") from error


def _device(stored: Fields) -> Device:
    return Device(stored.text("name"), stored.whole("memory_bytes"), stored.text("host"))


def _group(stored: Fields) -> Group:
    shape = stored.part("shape")
    return Group(
        name=stored.text("name"),
        devices=stored.texts("devices"),
        shape=Shape(shape.whole("stages", 1, MOST_STAGES), shape.whole("ways", 1, MOST_STAGES)),
        stacks=tuple(map(_stack, stored.parts("stacks"))),
    )


def _stack(stored: Fields) -> Stack:
    return Stack(
        root=stored.text("root"),
        first_half=stored.whole("first_half"),
        end_half=stored.whole("end_half"),
        size_bytes=stored.whole("size_bytes"),
        level=stored.text("level"),
        stage=stored.whole("stage", 0, MOST_STAGES - 1),
    )


def _roots(stored: Fields) -> dict[str, str]:
    return {name: stored.text(name) for name in stored.names()}


def _alternative(stored: Fields) -> Alternative:
    def share(name: str) -> float | None:
        return None if stored.value(name) is None else stored.number(name, 0.0, 1.0)

    mean_ms = None if stored.value("mean_ms") is None else stored.number("mean_ms", 0.0)
    over_load = tuple((load, share) for load, share in stored.numbers("over_load", 2)) if "over_load" in stored else ()
    return Alternative(stored.text("name"), share("attainment"), share("held_out"), mean_ms, over_load)


def _change(stored: Fields) -> Change:
    costs, moves = stored.part("costs"), stored.part("moves")
    return Change(
        previous=stored.text("previous"),
        window_s=stored.positive("window_s"),
        gain_points=stored.number("gain_points", -100.0, 100.0),
        gain_requests=stored.number("gain_requests"),
        cost_requests=stored.number("cost_requests", 0.0),
        moves=Moves(**{field.name: moves.whole(field.name) for field in fields(Moves)}),
        costs=MoveCosts(**{field.name: costs.number(field.name, 0.0) for field in fields(MoveCosts)}),
        steps=tuple(map(_step, stored.parts("steps"))),
    )


def _step(stored: Fields) -> Step:
    return Step(
        host=stored.text("host"),
        stops=stored.texts("stops"),
        groups=tuple(map(_group, stored.parts("groups"))),
        takes_s=stored.number("takes_s", 0.0),
        cost_requests=stored.number("cost_requests", 0.0),
        interrupts=stored.texts("interrupts"),
    )
