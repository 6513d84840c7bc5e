"""A plan as a picture: hosts, their devices with the memory that each root takes, and groups as brackets over them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from builder.canvas import Canvas
from builder.placement.planner.group import Device, Group
from builder.placement.planner.percentage import percentage
from builder.placement.planner.plan import Plan

_WIDTH, _MARGIN, _GAP = 944, 28, 12
_PER_ROW = 8
_DEVICE_HEIGHT, _ROW_HEIGHT, _HOST_HEIGHT = 150, 204, 30
_TOP, _LEGEND_HEIGHT, _BAR_HEIGHT = 84, 22, 24
_SURFACES = ("own", "first", "second", "third", "table", "shared", "other")
_MOST_DEVICES = 128
_BAR_WIDTH = 360
_SHORT = 14


def draw_plan(plan: Plan) -> str:
    """Draw a plan; of more devices than one can see, the first ones. Returns SVG."""
    surfaces = {root: _SURFACES[number % len(_SURFACES)] for number, root in enumerate(plan.roots)}
    rows = _rows(plan.devices[:_MOST_DEVICES])
    height = _TOP + len(rows) * (_ROW_HEIGHT + _HOST_HEIGHT) + _LEGEND_HEIGHT * (1 + len(plan.roots) // 4)
    known = [each for each in plan.alternatives if each.attainment is not None]
    canvas = Canvas(_WIDTH, height + 40 + _BAR_HEIGHT * len(known), "A placement", " ".join(plan.decisions))
    canvas.text(_MARGIN, 38, "Placement", size=18, bold=True)
    canvas.text(_MARGIN, 60, plan.verdict, size=13, ink="quiet")
    y = float(_TOP)
    for host, devices in rows:
        canvas.text(_MARGIN, y + 16, host, size=13, bold=True)
        _draw_row(canvas, plan, devices, surfaces, y + _HOST_HEIGHT)
        y += _ROW_HEIGHT + _HOST_HEIGHT
    _draw_legend(canvas, surfaces, y)
    _draw_bars(canvas, plan, height + 20)
    return canvas.svg()


def _rows(devices: Sequence[Device]) -> list[tuple[str, list[Device]]]:
    """Cut each host's devices in lines of a few."""
    found = []
    for host, of_host in groupby(sorted(devices, key=lambda device: device.host), key=lambda device: device.host):
        own = [*of_host]
        found += [(host, own[begin : begin + _PER_ROW]) for begin in range(0, len(own), _PER_ROW)]
    return found


def _draw_row(canvas: Canvas, plan: Plan, devices: Sequence[Device], surfaces: dict[str, str], y: float) -> None:
    width = (_WIDTH - 2 * _MARGIN - (_PER_ROW - 1) * _GAP) / _PER_ROW
    largest = max(device.memory_bytes for device in plan.devices)
    places = {name: (group, index) for group in plan.groups for index, name in enumerate(group.devices)}
    for number, device in enumerate(devices):
        x = _MARGIN + number * (width + _GAP)
        height = _DEVICE_HEIGHT * device.memory_bytes / largest
        canvas.box(x, y + _DEVICE_HEIGHT - height, width, height, "panel", edge="frame")
        canvas.text(
            x + width / 2, y + _DEVICE_HEIGHT + 16, _shortened(device.name), size=11, ink="quiet", anchor="middle"
        )
        if device.name in places:
            group, index = places[device.name]
            stage = index // group.shape.ways
            _draw_stacks(canvas, group, stage, surfaces, (x, y + _DEVICE_HEIGHT, width), _DEVICE_HEIGHT / largest)
            said = group.name if group.shape.stages == 1 else f"{group.name}, stage {stage}"
            canvas.text(x + width / 2, y + _DEVICE_HEIGHT + 32, said, size=11, anchor="middle")


def _draw_stacks(
    canvas: Canvas,
    group: Group,
    stage: int,
    surfaces: dict[str, str],
    at: tuple[float, float, float],
    pixels_per_byte: float,
) -> None:
    x, bottom, width = at
    for stack in group.stacks:
        if stack.stage == stage:
            height = stack.size_bytes * pixels_per_byte
            bottom -= height
            canvas.box(x + 3, bottom, width - 6, max(1.0, height - 1), surfaces[stack.root], radius=2)


def _draw_legend(canvas: Canvas, surfaces: dict[str, str], y: float) -> None:
    step = (_WIDTH - 2 * _MARGIN) / 4
    for number, (root, surface) in enumerate(surfaces.items()):
        x, line = _MARGIN + number % 4 * step, y + number // 4 * _LEGEND_HEIGHT
        canvas.box(x, line, 12, 12, surface, radius=2)
        canvas.text(x + 18, line + 11, _shortened(root, 26), size=12)


def _draw_bars(canvas: Canvas, plan: Plan, y: float) -> None:
    """Draw what the plan and the others answer in time."""
    known = [(each.name, each.attainment) for each in plan.alternatives if each.attainment is not None]
    for number, (name, attainment) in enumerate(known):
        line = y + number * _BAR_HEIGHT
        canvas.text(_MARGIN, line + 12, name, size=12, bold=number == 0)
        canvas.box(_MARGIN + 160, line, _BAR_WIDTH, 14, "panel", edge="frame", radius=2)
        canvas.box(
            _MARGIN + 160, line, max(1.0, _BAR_WIDTH * attainment), 14, "own" if number == 0 else "other", radius=2
        )
        canvas.text(_MARGIN + 170 + _BAR_WIDTH, line + 12, f"{percentage(attainment)} in time", size=12)


def _shortened(text: str, most: int = _SHORT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
