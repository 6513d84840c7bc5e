"""Commands that load a running server and judge how it answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backends.errors import InvalidArgumentError
from cli.loadtest_options import (
    ContentOptions,
    DurationOption,
    EveryOption,
    RunOptions,
    TargetOptions,
    TenantsOption,
    duration_of,
    every_of,
)
from cli.loadtest_run import LoadTestRun, check_installed, print_results
from cli.option_groups import grouped
from cli.options import JsonOption, print_json, print_table
from cli.workload_help import LANGUAGE

if TYPE_CHECKING:
    from workload.spec import LoadSpec
    from workload.tenants import Tenants

app = typer.Typer(
    help="Load a running server and judge how it answers.",
    epilog="A first run: hplm loadtest overload --load 0.5x --deadlines 500ms-2s --out half → open half/report.html → "
    "hplm loadtest overload --load 0.8x --deadlines 500ms-2s --out more → hplm loadtest compare half more",
    no_args_is_help=True,
)

_OPEN_LOOP = (
    "All times are drawn before the first request: each request is sent when it is due, however many wait for their "
    "answers. The folder --out gets requests.csv (a line per request), summary.json and report.html; also after Ctrl-C."
)
_OVERLOAD_HELP = f"""Requests at a rate, or at a multiple of what the server can do.

{LANGUAGE}

\b
hplm loadtest overload --load 200/s --arrivals bursts:ratio=9,stay=2s --tenants zipf:exponent=1.1
hplm loadtest overload --load 2x --deadlines 100ms-400ms --duration 2m --out twice
"""
_CALIBRATION_RATE_PER_S = 1024.0

ScenarioFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that --out has named.")]


def register(parent: typer.Typer) -> None:
    app.command(epilog=_OPEN_LOOP)(grouped(steady))
    app.command(epilog=_OPEN_LOOP)(grouped(burst))
    app.command(epilog=_OPEN_LOOP, help=_OVERLOAD_HELP)(grouped(overload))
    app.command(epilog=_OPEN_LOOP)(grouped(trace))
    app.command()(compare)
    app.command()(report)
    app.command()(worker)
    parent.add_typer(app, name="loadtest")


def steady(
    context: typer.Context,
    *,
    every: EveryOption = "20s",
    duration: DurationOption = None,
    target: TargetOptions,
    content: ContentOptions,
    run: RunOptions,
) -> None:
    """Every hPLM asks once in 20 s (--every), each from a random moment on."""
    from loadtest.scenarios import Steady

    scenario = Steady(every_s=every_of(every), **_given(duration_s=duration_of(duration)))
    LoadTestRun(context, target, content, run).play(scenario)


def burst(
    context: typer.Context,
    *,
    tenants: TenantsOption = "uniform",
    users: Annotated[int, typer.Option(help="How many users.")] = 250,
    spawn: Annotated[str, typer.Option("--spawn", "--spawn-s", help="Time between users: 50ms.")] = "50ms",
    every: EveryOption = "1.2s",
    requests: Annotated[int, typer.Option(help="Requests of each user.")] = 50,
    duration: DurationOption = None,
    target: TargetOptions,
    content: ContentOptions,
    run: RunOptions,
) -> None:
    """Users that begin one after the other; each asks one hPLM 50 times, every 1.2 s."""
    from loadtest.scenarios import Burst
    from workload.forms import read_duration_s

    spawn_s = read_duration_s(spawn, "--spawn")
    scenario = Burst(_tenants(tenants), users, spawn_s, every_of(every), requests, duration_of(duration))
    LoadTestRun(context, target, content, run).play(scenario)


def overload(
    context: typer.Context,
    *,
    load: Annotated[
        str | None,
        typer.Option(help="How much: 200/s, or 2x for twice what the server can do, which is measured first (6 s)."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="The same as --load RATE/s.", hidden=True)] = None,
    capacity: Annotated[
        float | None, typer.Option(help="With --load 2x: what the server can do, per second, instead of measuring.")
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(help="When: poisson, even, gamma, or bursts."),
    ] = "poisson",
    tenants: TenantsOption = "uniform",
    duration: DurationOption = None,
    target: TargetOptions,
    content: ContentOptions,
    run: RunOptions,
) -> None:
    from loadtest.scenarios import Overload, Scenario
    from workload.arrivals import PoissonArrivals
    from workload.spec import parse_arrivals

    amount, times, who = _load(load, rate, capacity), parse_arrivals(arrivals), _tenants(tenants)
    if times.trace is not None:
        raise InvalidArgumentError(f"a trace has a scenario of its own: hplm loadtest trace --trace {times.trace}")
    lasting = _given(duration_s=duration_of(duration))

    def scenario_at(capacity_per_s: float) -> Scenario:
        return Overload(times.at_rate(amount.rate_per_s(capacity_per_s)), who, **lasting)

    scenario = scenario_at(capacity or 1.0)
    test = LoadTestRun(context, target, content, run)
    if amount.is_relative and capacity is None:
        test.play_at_capacity(scenario_at, Overload(PoissonArrivals(_CALIBRATION_RATE_PER_S), who, 1.0))
    else:
        test.play(scenario)


def trace(
    context: typer.Context,
    *,
    trace: Annotated[Path, typer.Option(help="The file.")],
    tenants: TenantsOption = "uniform",
    speed: Annotated[float, typer.Option(help="2 plays an hour in half an hour.")] = 1.0,
    rate_scale: Annotated[
        float, typer.Option(help="2 makes two requests of each in the same time; 0.5 drops every other one.")
    ] = 1.0,
    duration: DurationOption = None,
    target: TargetOptions,
    content: ContentOptions,
    run: RunOptions,
) -> None:
    """The requests of a recorded trace: a CSV with a header or JSONL.

    Its column time_s, time, timestamp or TIMESTAMP says when, tokens how long, hplm or tenant whose, deadline_ms until
    when, level for which level. Times must not decrease; equal ones are simultaneous. hplm traffic export writes such a
    trace.
    """
    from loadtest.scenarios import Replay
    from workload.traces import read_trace

    scenario = Replay(read_trace(trace), _tenants(tenants), speed, rate_scale, duration_of(duration))
    LoadTestRun(context, target, content, run).play(scenario)


def compare(
    first: ScenarioFolder,
    second: Annotated[Path, typer.Argument(metavar="FOLDER", help="Another one.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("comparison.html"),
    as_json: JsonOption = False,
) -> None:
    """Two runs side by side, as one HTML file; ratios are of the second to the first."""
    from loadtest.report import compared_rows, comparison, notices
    from loadtest.results import read_results
    from loadtest.run_folder import RunFolder

    results = [read_results(RunFolder.open(path)) for path in (first, second)]
    names = (first.resolve().name, second.resolve().name)
    if names[0] == names[1]:
        names = (str(first), str(second))
    out.write_text(comparison(results[0], results[1], names), encoding="utf-8")
    if as_json:
        print_json([{"name": name, **one.summary} for name, one in zip(names, results, strict=True)])
        return
    print_table(compared_rows(results[0], results[1]), ("", *names, "ratio"))
    for name, one in zip(names, results, strict=True):
        for notice in notices(one):
            typer.echo(f"{name}: {notice}", err=True)
    typer.echo(f"wrote {out}")


def report(folder: ScenarioFolder, as_json: JsonOption = False) -> None:
    """Write a run's summary and report again; also of a run that was killed before it could."""
    from loadtest.run import write_report
    from loadtest.run_folder import RunFolder

    opened = RunFolder.open(folder)
    print_results(write_report(opened), opened.report, as_json)


def worker(
    master: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where a load test runs with --master PORT.")],
) -> None:
    """Send a share of another machine's load test, then end. The clocks of the machines should agree."""
    import subprocess

    host, _, port = master.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgumentError(f"{master!r} is not of the form HOST:PORT")
    check_installed()
    raise typer.Exit(subprocess.call([sys.executable, "-m", "loadtest.generator.worker", host, port]))


def _load(load: str | None, rate: float | None, capacity: float | None) -> LoadSpec:
    from workload.checks import check_positive
    from workload.spec import parse_load

    if rate is not None and load is not None:
        raise InvalidArgumentError("--rate and --load both say how much; give one of them")
    if rate is not None:
        check_positive(rate=rate)
        load = f"{rate}/s"
    if load is None:
        raise InvalidArgumentError("overload needs --load: 200/s, or 2x for twice what the server can do")
    amount = parse_load(load, bare_unit="x", option="--load")
    if amount.is_relative and not load.strip().endswith("x"):
        typer.echo(f"--load {load} means {load} times what the server can do; {load}/s is a rate", err=True)
    if capacity is not None:
        check_positive(capacity=capacity)
        if not amount.is_relative:
            raise InvalidArgumentError("--capacity goes with a --load in multiples, such as 2x")
    return amount


def _tenants(text: str) -> Callable[[int], Tenants]:
    from workload.spec import parse_tenants

    spec = parse_tenants(text, count_is_known=True)
    if spec is None:
        raise InvalidArgumentError("load tests take a trace's tenants wherever it has them; leave --tenants out")
    return spec.among


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; the scenario knows its own defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}
