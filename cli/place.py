"""`hplm place`: which roots stand on which devices, by simulating a recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backends.errors import InvalidArgumentError
from backends.storage import require_writable, write_errors_are_clear
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_json, print_rows, read_span_s
from cli.session import open_home

if TYPE_CHECKING:
    from backends.home import Home
    from backends.registry.registry import Registry
    from backends.scheduling.settings import Capacity
    from builder.placement.planner.asked_traffic import AskedTraffic
    from builder.placement.planner.change import Step
    from builder.placement.planner.group import Device
    from builder.placement.planner.hysteresis import Hysteresis
    from builder.placement.planner.plan import Plan
    from builder.placement.planner.target import Target

_HELP = """Decide which roots stand on which devices, by simulating a recorded traffic.

Roots that all fit on every device stand everywhere, and none is cut in stages. Where they do not fit, groups of
devices, stages and replicas are searched for, and compared with what one would do without a search.

The traffic is a CSV or JSONL with the columns time_s and hplm, and with tokens and deadline_ms where they are known.
Each root needs a cost model of the dtype that the export serves in: 'hplm profile' makes it. The plan is written to
profiles/placement.json of the home, or to the file of --out.

With --from the placement stays, unless another one has a point more in time, and its gain within --window is twice what
its moves cost. The plan then has the steps, one host at a time, for 'hplm fleet apply'.

With --target the plan takes as few of the devices as answer that percentage of the requests on time, by simulation: the
first ones in the order listed. One device fewer was too few. Real servers may need more.
"""


_RESERVE = "1GB"
_OTHER_FILE = "or name another one with --out"
_NOT_WRITTEN = "or see the plan without writing it by --dry-run"


@dataclass(frozen=True)
class TrafficOptions:
    traffic: Annotated[Path, typer.Option(help="The recorded requests: CSV or JSONL with time_s and hplm.")]
    deadlines: Annotated[
        str | None,
        typer.Option(
            help="By when they are to be answered: 200ms, 50ms-200ms, or 5x-20x times a full batch. "
            "\\[default: the traffic's column deadline_ms]"
        ),
    ] = None
    speed: Annotated[float, typer.Option(help="2 plays an hour of the traffic in half an hour.")] = 1.0
    tokens: Annotated[float, typer.Option(help="Tokens of a text, where the traffic does not say.")] = 20.0
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="hPLMs of each root that a device keeps, at most. \\[default: the export's]"),
    ] = None

    def read(self, registry: Registry, capacity: Capacity) -> AskedTraffic:
        from builder.placement.planner.asked_traffic import Recorded, read_asked

        slots = capacity.max_adapters if self.slots is None else self.slots
        return read_asked(registry, Recorded(self.traffic, self.deadlines, self.speed, self.tokens, slots))


@dataclass(frozen=True)
class DeviceOptions:
    devices: Annotated[
        str | None,
        typer.Option(
            help="What there is: 4x16GB, or with hosts 2x16GB@alpha,2x24GB@beta. \\[default with --from: its devices]"
        ),
    ] = None
    reserve: Annotated[
        str | None,
        typer.Option(
            help="With --devices: memory of each that is left to batches and to others. \\[default: 1GB]",
            show_default=False,
        ),
    ] = None

    target: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="Take only the first of the devices: as few as answer this percentage on time, such as 99. "
            "\\[default: all devices]",
            show_default=False,
        ),
    ] = None

    hop: Annotated[
        str, typer.Option(help="What handing a batch on to the next stage takes, where there are stages.")
    ] = "0.5ms"

    stages: Annotated[
        bool, typer.Option("--stages/--no-stages", help="Whether roots may be cut; hplm fleet apply takes whole ones.")
    ] = True

    def stage_counts(self) -> tuple[int, ...]:
        from builder.placement.planner.problem import NO_STAGES, STAGE_COUNTS

        return STAGE_COUNTS if self.stages else NO_STAGES

    def hop_us(self) -> int:
        return round(1e6 * read_span_s(self.hop, "--hop"))

    def goal(self, from_: Path | None) -> Target | None:
        from builder.placement.planner.target import Target

        if self.target is not None and from_ is not None:
            raise InvalidArgumentError("--target chooses the devices and --from keeps them; give only one")
        return None if self.target is None else Target(self.target)

    def parsed(self, previous: Plan | None) -> tuple[Device, ...]:
        from builder.placement.planner.device_spec import parse_devices, read_size

        if self.devices is not None:
            return parse_devices(self.devices, read_size(self.reserve or _RESERVE, "--reserve"))
        if previous is None:
            raise InvalidArgumentError("say what there is with --devices, such as 4x16GB, or name a plan with --from")
        if self.reserve is not None:
            raise InvalidArgumentError("--reserve goes with --devices; without them the plan of --from has its own")
        return previous.devices


@dataclass(frozen=True)
class ChangeOptions:
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="The plan that is applied. It stays, unless another one gains clearly more."),
    ] = None
    window: Annotated[str, typer.Option(help="With --from: for how long the next plan is to stand.")] = "1h"

    def previous(self) -> Plan | None:
        from builder.placement.planner.plan_file import read_plan

        return None if self.from_ is None else read_plan(self.from_)

    def parsed(self) -> Hysteresis:
        from builder.placement.planner.hysteresis import Hysteresis

        return Hysteresis(read_span_s(self.window, "--window"))


@dataclass(frozen=True)
class PictureOptions:
    svg: Annotated[Path | None, typer.Option(help="Draw the plan there.")] = None
    compare: Annotated[
        Path | None,
        typer.Option(help="Draw there what the plan and the other ways answer on time at multiples of the load."),
    ] = None

    def require_folders(self) -> None:
        for option, path in (("--svg", self.svg), ("--compare", self.compare)):
            if path is not None:
                _require_file_name(path, option)

    def loads(self) -> Sequence[float]:
        from builder.placement.planner.judging import LOADS

        return () if self.compare is None else LOADS

    def draw(self, made: Plan) -> None:
        from builder.placement.planner.comparison_picture import draw_comparison
        from builder.placement.planner.plan_picture import draw_plan

        for path, drawn in ((self.svg, draw_plan), (self.compare, draw_comparison)):
            if path is not None:
                path.write_text(drawn(made), encoding="utf-8")


@dataclass(frozen=True)
class FileOptions:
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the plan to this file, with --from also one that stays. "
            "\\[default: profiles/placement.json of the home, unless the placement stays]"
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and write none.")] = False

    def require_folder(self, home: Home) -> None:
        if self.out is None:
            if not self.dry_run:
                require_writable(home.placement.parent, _NOT_WRITTEN)
            return
        if self.dry_run:
            raise InvalidArgumentError("--dry-run writes no plan and --out names a file for it; give only one")
        _require_file_name(self.out, "--out")

    def write(self, made: Plan, home: Home) -> Path | None:
        """Write a plan, unless it stands in the home's file already; return where it is written."""
        from builder.placement.planner.plan_file import write_plan

        stays = made.change is not None and not made.change.steps
        if self.dry_run or (stays and self.out is None):
            return None
        path, otherwise = (home.placement, _NOT_WRITTEN) if self.out is None else (self.out, _OTHER_FILE)
        with write_errors_are_clear(path, otherwise):
            write_plan(path, made)
        return path


def _require_file_name(path: Path, option: str) -> None:
    """Reject a path that no file can be written to, before the search."""
    if path.is_dir():
        raise InvalidArgumentError(f"{option} {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{path.parent}, where {option} is to be written, is no folder")
    require_writable(path.parent, f"or name another one with {option}")


def register(app: typer.Typer) -> None:
    app.command(help=_HELP)(grouped(place))


def place(
    traffic: TrafficOptions,
    devices: DeviceOptions,
    change: ChangeOptions,
    pictures: PictureOptions,
    files: FileOptions,
    seed: Annotated[int, typer.Option(min=0, help="Which parts of the traffic are kept apart to judge by.")] = 2024,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    opened, registry = open_home(home)
    pictures.require_folders()
    files.require_folder(opened)
    # Arguments are rejected before PyTorch is imported, which takes seconds.
    target, hop_us = devices.goal(change.from_), devices.hop_us()
    previous, hysteresis = change.previous(), change.parsed()
    where = devices.parsed(previous)
    if previous is not None:
        previous.require_devices(where)
    from builder.export.in_force import exported_capacity, exported_dtype

    capacity, dtype = exported_capacity(opened.repository), exported_dtype(opened.repository)
    asked = traffic.read(registry, capacity)
    _require_profiles(opened, registry)

    from builder.placement.planner.fewest import fewest
    from builder.placement.planner.plan_file import plan_to_json
    from builder.placement.planner.planner import plan
    from builder.placement.planner.recorded import recorded_fleet
    from builder.placement.planner.replan import replan
    from builder.progress import progress_bars

    fleet = recorded_fleet(opened, registry, asked, where, seed, hop_us, devices.stage_counts(), capacity, dtype)
    with progress_bars("placement") as report:
        searching = (seed, report, pictures.loads())
        if target is not None:
            made = fewest(fleet, target, *searching)
        else:
            made = plan(fleet, *searching) if previous is None else replan(fleet, previous, hysteresis, *searching)
    written = files.write(made, opened)
    pictures.draw(made)
    if as_json:
        print_json(plan_to_json(made))
    else:
        _print(made)
        if written is not None:
            typer.echo(f"written to {written}", err=True)


def _require_profiles(home: Home, registry: Registry) -> None:
    from builder.placement.planner.root_profiles import root_profile

    for entry in registry.roots():
        root_profile(home, entry)


def _print(made: Plan) -> None:
    typer.echo(made.verdict)
    print_rows(_group_rows(made), "groups", as_json=False)
    print_rows([_alternative_row(asdict(each)) for each in made.alternatives], "in time, by simulation", as_json=False)
    if made.change is not None and made.change.steps:
        print_rows([_step_row(*each) for each in enumerate(made.change.steps, start=1)], "steps", as_json=False)
    for decision in made.decisions:
        typer.echo(decision)
    if any(group.shape.stages > 1 for group in made.groups):
        typer.echo("'hplm fleet apply' takes no roots that are cut in stages; --no-stages cuts none")


def _group_rows(made: Plan) -> list[dict[str, Any]]:
    memory = {device.name: device.memory_bytes for device in made.devices}
    return [
        {
            "group": group.name,
            "devices": " ".join(group.devices),
            "stages": group.shape.stages,
            "roots": " ".join(group.roots),
            "GB": round(max(group.stage_bytes(stage) for stage in range(group.shape.stages)) / 1e9, 3),
            "of GB": round(min(memory[name] for name in group.devices) / 1e9, 3),
        }
        for group in made.groups
    ]


def _step_row(number: int, step: Step) -> dict[str, Any]:
    return {
        "step": number,
        "host": step.host,
        "stops": " ".join(step.stops),
        "then": "; ".join(f"{group.name}: {' '.join(group.roots)}" for group in step.groups),
        "takes": f"{step.takes_s:.0f} s",
        "interrupts": " ".join(step.interrupts),
    }


def _alternative_row(alternative: dict[str, Any]) -> dict[str, Any]:
    from builder.placement.planner.percentage import percentage

    def share(value: float | None) -> str:
        return "does not fit" if value is None else percentage(value)

    held_out, mean_ms = alternative["held_out"], alternative["mean_ms"]
    return {
        "": alternative["name"],
        "in time": share(alternative["attainment"]),
        "of unseen requests": "" if held_out is None else share(held_out),
        "mean ms": "" if mean_ms is None else f"{mean_ms:.1f}",
    }
