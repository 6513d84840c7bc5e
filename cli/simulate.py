"""`hplm simulate`: play a load against a cost model in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError
from builder.root_choice import chosen_root
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_entry, print_json, print_rows
from cli.session import open_home
from cli.workload_help import LANGUAGE, SIMULATED

if TYPE_CHECKING:
    from backends.scheduling.cost_model import CostModel
    from backends.scheduling.policies import Policy
    from backends.scheduling.settings import Capacity
    from builder.placement import Exits, SimulatedLoad, Simulator, Stages, Students
    from builder.placement.described_workload import DescribedWorkload
    from builder.placement.fleet.happenings import Happening
    from builder.placement.server_costs import ServerCosts
    from builder.progress import Report

_MOST_SERVERS = 64
_HELP = f"""Play a load against a cost model in virtual time.

An hour of a thousand requests a second takes some minutes.

{LANGUAGE}

{SIMULATED}

\b
hplm simulate --load 2x --deadlines 5x-20x --policy fcfs --policy das
hplm simulate --load 300/s --arrivals bursts --tenants zipf:count=500 --duration 10m
hplm simulate --arrivals trace:monday.csv --lengths trace --tenants trace --deadlines trace
hplm simulate --load 1.2x --deadlines 5x-20x --early-share 0.6 --early-after 2/6
hplm simulate --load 0.6x --arrivals bursts:ratio=3 --deadlines 5x-20x --students 2 --student-depth 1/3
hplm simulate --load 1.5x --deadlines 5x-20x --stages 2
hplm simulate --servers 4 --load 0.7x --deadlines 5x-20x --lose 2@10m-11m --drain 3@30m-31m
"""


@dataclass(frozen=True)
class MachineOptions:
    home: HomeOption = DEFAULT_HOME
    root: RootOption = None
    cost_model: Annotated[
        Path | None,
        typer.Option(help="A cost model as 'hplm profile' stores it, of any machine. \\[default: the root's]"),
    ] = None
    max_rows: Annotated[int, typer.Option(help="Rows in a batch, at most.")] = 64
    max_tokens: Annotated[int, typer.Option(help="Tokens in a batch, at most.")] = 4096
    max_adapters: Annotated[int, typer.Option(help="Different hPLMs in a batch, at most.")] = 64
    server_costs: Annotated[
        Path | None,
        typer.Option(
            help="What serving takes beside batches, as 'python -m bench.simulator --costs' measures it. "
            "\\[default: nothing]"
        ),
    ] = None

    stages: Annotated[
        int,
        typer.Option(
            help="Pipeline stages, all alike; the cost model is then of all layers on the threads of one, as "
            "'hplm profile' measures it for an export with --stages. --load 1x is what all stages can do."
        ),
    ] = 1

    def made_stages(self) -> Stages:
        from builder.placement import Stages

        return Stages.even(self.stages)

    def costs(self) -> ServerCosts | None:
        from builder.placement.server_costs import ServerCosts

        return None if self.server_costs is None else ServerCosts.read(self.server_costs)

    def model(self) -> CostModel:
        from builder.placement.cost_file import cost_model_of, read_cost_model

        if self.cost_model is not None:
            return read_cost_model(self.cost_model)
        if (costs := self.costs()) is not None:
            return costs.model
        opened, registry = open_home(self.home)
        return cost_model_of(opened, chosen_root(registry, self.root))

    def capacity(self) -> Capacity:
        from backends.scheduling.settings import Capacity

        return Capacity(self.max_rows, self.max_tokens, self.max_adapters)


@dataclass(frozen=True)
class WorkloadOptions:
    load: Annotated[
        str | None,
        typer.Option(
            help="How much: 200/s, or 2x for twice what full batches can answer. "
            "\\[default: 1x, or a trace as it was recorded]"
        ),
    ] = None
    arrivals: Annotated[
        str,
        typer.Option(help="When: poisson, even, gamma, bursts, or trace:FILE."),
    ] = "poisson"
    cv: Annotated[float | None, typer.Option(help="The same as --arrivals gamma:cv=CV.", hidden=True)] = None
    burst_ratio: Annotated[float | None, typer.Option(help="The same as bursts:ratio=RATIO.", hidden=True)] = None
    burst_s: Annotated[float | None, typer.Option(help="The same as bursts:stay=SECONDS.", hidden=True)] = None
    speed: Annotated[float, typer.Option(help="Of a trace: 2 plays an hour in half an hour.")] = 1.0
    lengths: Annotated[
        str,
        typer.Option(help="Tokens: normal:deviation=20, fixed:tokens=20, or trace."),
    ] = "normal:20"
    tenants: Annotated[str, typer.Option(help="Who asks: uniform or zipf, with count=1000 by default, or trace.")] = (
        "zipf"
    )
    deadlines: Annotated[
        str | None,
        typer.Option(
            "--deadlines",
            "--deadline-ms",
            help="200ms, 50ms-200ms for any in between, 5x-20x times a full batch, or trace. \\[default: none]",
        ),
    ] = None
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", "--duration-s", help="Virtual time: 30s, 5m. \\[default: 1h, or a trace to its end]"
        ),
    ] = None
    retrieval_ms: Annotated[float, typer.Option(help="From a request's arrival to the upper model's queue.")] = 2.0
    seed: Annotated[int, typer.Option(min=0, help="The same seed and options draw the same load.")] = 2024

    def described(self) -> DescribedWorkload:
        from builder.placement.described_workload import DescribedWorkload

        older = {"cv": self.cv, "ratio": self.burst_ratio, "stay": self.burst_s}
        defaults = {name: value for name, value in older.items() if value is not None}
        words = self.arrivals, self.load, self.lengths, self.tenants, self.deadlines
        return DescribedWorkload(*words, self.retrieval_ms, self.speed, defaults)

    def duration_s(self) -> float | None:
        from workload.forms import read_duration_s

        return None if self.duration is None else read_duration_s(self.duration, "--duration")


@dataclass(frozen=True)
class ExitOptions:
    early_share: Annotated[
        float | None,
        typer.Option(
            help="Share of texts that are answered early, as ladders would ('hplm select' says answered_early). "
            "\\[default: no ladders]"
        ),
    ] = None
    early_after: Annotated[
        str, typer.Option(help="With --early-share: share of the upper layers that they pass, as 2/6.")
    ] = "1/3"
    late: Annotated[
        Literal["settle", "reject"] | None,
        typer.Option(
            help="With --early-share: what becomes of a text that all layers would answer too late, as in "
            "'hplm select'. \\[default: settle]"
        ),
    ] = None

    def exits(self) -> Exits | None:
        from builder.placement import Exits

        if self.early_share is None:
            if self.late is not None:
                raise InvalidArgumentError("--late says what becomes of texts of ladders, which --early-share gives")
            return None
        return Exits(self.early_share, _share_of(self.early_after, "--early-after"), self.late != "reject")


@dataclass(frozen=True)
class StudentOptions:
    students: Annotated[
        int | None,
        typer.Option(
            help="Students answer every request, as many of them as the load allows. \\[default: all layers do]"
        ),
    ] = None
    student_depth: Annotated[
        str, typer.Option(help="With --students: what one costs, as a share of the upper layers, such as 2/6.")
    ] = "1/3"
    always: Annotated[
        int | None, typer.Option("--always", help="With --students: always so many, whatever the load.")
    ] = None

    def made(self) -> Students | None:
        from builder.placement import Students

        if self.students is None:
            if self.always is not None:
                raise InvalidArgumentError("--always says how many of --students answer, which is not given")
            return None
        return Students(self.students, _share_of(self.student_depth, "--student-depth"), self.always)


@dataclass(frozen=True)
class FleetOptions:
    servers: Annotated[
        int | None,
        typer.Option(help="So many servers behind a gateway; --load 1x is what all of them can do. \\[default: one]"),
    ] = None
    balance: Annotated[
        int,
        typer.Option(help="With --servers: open requests of a server over the mean of all, in percent; 0: no bound."),
    ] = 125
    lose: Annotated[
        list[str] | None,
        typer.Option(help="With --servers: the second one dies at 30 s, for good or until 60 s: 2@30s or 2@30s-60s."),
    ] = None
    drain: Annotated[
        list[str] | None, typer.Option(help="With --servers: the same of one that first answers what it holds.")
    ] = None

    @property
    def count(self) -> int:
        if self.servers is None and (self.lose or self.drain):
            raise InvalidArgumentError("--lose and --drain name servers of --servers, which is not given")
        if self.servers is not None and not 1 <= self.servers <= _MOST_SERVERS:
            raise InvalidArgumentError(f"--servers is 1 to {_MOST_SERVERS}, not {self.servers}")
        return self.servers or 1

    def happenings(self) -> list[Happening]:
        from builder.placement.fleet.happenings import Drain, Loss, read_happening

        lost = [read_happening(Loss, text, "--lose") for text in self.lose or ()]
        return [*lost, *(read_happening(Drain, text, "--drain") for text in self.drain or ())]

    def played(self, make: Callable[[int], Simulator], load: SimulatedLoad, report: Report) -> dict[str, Any]:
        """Play a load; `make` makes a server by its number."""
        from builder.placement.fleet.fleet_simulator import FleetSimulator

        if self.servers is None:
            simulation = make(0).run(load, report)
            return {**simulation.figures(), "rejected": simulation.rejected()}
        servers = {f"server-{number}": make(number) for number in range(1, self.count + 1)}
        fleet = FleetSimulator(servers, self.balance).run(load, self.happenings(), report)
        return {**fleet.figures(), "rejected": fleet.together.rejected(), "servers": fleet.rows()}


def _share_of(text: str, option: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidArgumentError(f"{option}: {text!r} is no share, such as 2/6 or 0.33") from error


def register(app: typer.Typer) -> None:
    app.command(help=_HELP)(grouped(simulate))


def simulate(
    machine: MachineOptions,
    workload: WorkloadOptions,
    ladders: ExitOptions,
    students: StudentOptions,
    fleet: FleetOptions,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="What runs next; may be repeated, all meet the same load. \\[default: fcfs]"),
    ] = None,
    admission: Annotated[
        bool, typer.Option(help="Reject at once what is predicted to be late, as a server does by default.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    from backends.scheduling.settings import AdmissionSettings
    from builder.placement import Simulator
    from builder.placement.described_workload import Machine
    from builder.placement.policies import policy_named
    from builder.progress import progress_bars

    model, capacity, costs, count = machine.model(), machine.capacity(), machine.costs(), fleet.count
    fleet.happenings()  # what is wrong there is said before anything is drawn
    exits, of_students, stages = ladders.exits(), students.made(), machine.made_stages()
    policies = {name: policy_named(name, model.scaled(stages.slowest)) for name in policy or ["fcfs"]}
    described = workload.described()
    at_once = count * machine.stages  # full batches
    load = described.on(Machine(model, capacity, at_once)).draw(
        described.duration_s(workload.duration_s()), workload.seed
    )
    settings = AdmissionSettings(predicts=admission)
    results = []
    for name, chosen in policies.items():

        def make(number: int, chosen: Policy = chosen) -> Simulator:
            seed = workload.seed + number
            return Simulator(
                chosen,
                model,
                capacity,
                settings,
                exits=exits,
                students=of_students,
                costs=costs,
                seed=seed,
                stages=stages,
            )

        with progress_bars(name) as report:
            results.append({"policy": name, **fleet.played(make, load, report)})
    _print(results, as_json)


def _print(results: list[dict[str, Any]], as_json: bool) -> None:
    """Print one policy from top to bottom, several as columns."""
    if as_json:
        print_json(results)
        return
    described = [_described(one) for one in results]
    if len(described) == 1:
        print_entry(described[0], as_json=False)
        if "servers" in results[0]:
            print_rows(results[0]["servers"], "servers", as_json=False)
        return
    names = dict.fromkeys(name for one in described for name in one)
    rows = [{"": name, **{one["policy"]: one.get(name, "") for one in described}} for name in names if name != "policy"]
    print_rows(rows, "policies on the same load", as_json=False)


def _described(one: dict[str, Any]) -> dict[str, str]:
    rejected = {f"rejected: {reason}": f"{count:,}" for reason, count in one["rejected"].items()}
    figures = {name: _shown(value) for name, value in one.items() if name not in ("rejected", "servers")}
    return {**figures, **rejected}


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
