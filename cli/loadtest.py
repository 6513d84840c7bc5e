"""Commands that load a running server and judge how it answers."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from backends.errors import InvalidArgumentError
from cli.load_options import Shape, check_shape, content_of, scenario_of, usual
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_json

if TYPE_CHECKING:
    from loadtest.results import Results
    from loadtest.scenarios import Content, Scenario
    from loadtest.schedule import Schedule
    from loadtest.sender import Target

app = typer.Typer(
    help="Load a running server and judge how it answers.",
    epilog="A first run: hplm loadtest steady --out steady → open steady/report.html → hplm loadtest overload "
    "--load 2 --deadline-ms 200 --out twice → hplm loadtest compare steady twice --out both.html",
    no_args_is_help=True,
)

_SCENARIOS = {
    "steady": "Every hPLM asks once in 20 s (--every-s), from a random moment on.",
    "burst": "250 users, one more every 0.05 s; each asks its hPLM 50 times, every 1.2 s.",
    "overload": "Requests at a rate (--rate), or at a multiple of what the server can do (--load), whatever it "
    "makes of them.",
    "trace": "The requests of a recorded trace (--trace FILE): a CSV with a header or JSONL. Its column time_s, time, "
    "timestamp or TIMESTAMP says when, tokens how long, tenant whose. Times must not go backwards; equal ones came "
    "together.",
}
_OPEN_LOOP = (
    "\n\nAll times are drawn before the first request and kept: requests are sent when they are due, however many wait "
    "for their answers. The folder --out gets requests.csv (a line per request), summary.json and report.html; also "
    "after Ctrl-C."
)
_INTERRUPTED = 130
_CALIBRATION_S = 6.0
_CALIBRATION_ROWS = 1024

ScenarioFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that --out has named.")]


def register(parent: typer.Typer) -> None:
    for name, explanation in _SCENARIOS.items():
        app.command(name, help=explanation + _OPEN_LOOP)(run)
    app.command()(compare)
    app.command()(report)
    app.command()(worker)
    parent.add_typer(app, name="loadtest")


def run(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the results; by default loadtest-SCENARIO-TIME.")
    ] = None,
    url: Annotated[str, typer.Option(help="Where the server is: host:port, grpc://… or http://….")] = "localhost",
    protocol: Annotated[
        Literal["grpc", "http"] | None, typer.Option(help="How to ask; grpc where neither this nor the URL says it.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    hplm: Annotated[
        list[str] | None, typer.Option(help="Ask this hPLM; may be repeated. By default all of the home.")
    ] = None,
    tenants: Annotated[
        str | None,
        typer.Option(help="Not steady: who asks, uniform or zipf:EXPONENT (the first hPLM most). \\[default: uniform]"),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens: normal:DEVIATION (around 20, 3 to 100), or fixed:TOKENS. By default normal:20, or whatever "
            "the lines of --texts have."
        ),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Texts to ask about, one per line; by default common words in random order.")
    ] = None,
    deadline_ms: Annotated[
        str | None, typer.Option(help="Refuse rather than answer later: 200, or 100-400 for any in between.")
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(help="Give a request up after this; by default its deadline and 1 s, or 30 s without one."),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds: 60 for steady, 30 for overload; burst and trace end by themselves without it."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="overload: requests per second.")] = None,
    load: Annotated[
        float | None, typer.Option(help="overload: this many times the capacity, which is measured first (6 s).")
    ] = None,
    capacity: Annotated[
        float | None, typer.Option(help="overload, with --load: requests per second, instead of measuring.")
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="overload: deterministic, poisson, gamma:CV, or bursts:RATIO:STAY_S (a busy state at RATIO times the "
            "calm one's rate, each kept STAY_S on average). \\[default: poisson]"
        ),
    ] = None,
    every_s: Annotated[float | None, typer.Option(help="steady, burst: seconds between requests.")] = None,
    users: Annotated[int | None, typer.Option(help="burst: how many.")] = None,
    spawn_s: Annotated[float | None, typer.Option(help="burst: seconds between users.")] = None,
    requests: Annotated[int | None, typer.Option(help="burst: of each user.")] = None,
    trace: Annotated[Path | None, typer.Option(help="trace: the file.")] = None,
    speed: Annotated[float | None, typer.Option(help="trace: 2 plays an hour in half an hour. \\[default: 1]")] = None,
    rate_scale: Annotated[
        float | None,
        typer.Option(
            help="trace: 2 makes two requests of each in the same time; 0.5 drops every other one. \\[default: 1]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed and options draw the same load.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that send.")] = 1,
    master: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Wait on this port for --workers processes of other machines: hplm loadtest worker HOST:PORT. "
            "Nothing checks who comes.",
        ),
    ] = None,
    max_lateness_ms: Annotated[
        float, typer.Option(help="The run counts as not valid if one request in 100 is sent later than this.")
    ] = 20.0,
    as_json: JsonOption = False,
) -> None:
    from loadtest.figures import errors
    from loadtest.run_folder import RunFolder
    from loadtest.sender import Target

    scenario_name = str(context.info_name)
    shape = Shape(
        duration, rate, load, capacity, arrivals, tenants, every_s, users, spawn_s, requests, trace, speed, rate_scale
    )
    settings = {"scenario": scenario_name, **usual(scenario_name)} | {
        name: str(value) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if value is not None and name not in ("home", "as_json", "out", "hplm")
    }
    target = Target(url, protocol, timeout_s)
    with _one_line():
        _check_installed()
        check_shape(scenario_name, shape, timeout_s, max_lateness_ms)
        path = out or Path(f"loadtest-{scenario_name}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
        # Everything that can be wrong with the words is found before the server is asked anything.
        recorded = scenario_of(scenario_name, shape, 1.0 if capacity is None else capacity)
        content = content_of(hplm, home, texts, lengths, deadline_ms)
        was_there = path.exists()
        folder = RunFolder.create(path)
        try:
            content = _checked_by_server(target, content)
            if load is not None and capacity is None:
                capacity = _calibrate(target, content, shape, seed)
                settings["measured_capacity_per_s"] = round(capacity, 1)
                recorded = scenario_of(scenario_name, shape, capacity)
            schedule = _drawn(recorded, content, seed)
        except BaseException:
            if not was_there:
                path.rmdir()  # nothing has been written yet
            raise
        settings |= {"hplms": len(content.hplms), "requests_planned": len(schedule)}
        results = _play(folder, schedule, target, workers, master, settings, max_lateness_ms)
    _print(results, folder.report, as_json)
    if errors(results.summary):
        raise typer.Exit(1)


def compare(
    first: ScenarioFolder,
    second: Annotated[Path, typer.Argument(metavar="FOLDER", help="Another one.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("comparison.html"),
) -> None:
    """Two runs side by side, as one HTML file; ratios are of the second to the first."""
    from loadtest.report import comparison
    from loadtest.results import read_results
    from loadtest.run_folder import RunFolder

    with _one_line():
        results = [read_results(RunFolder.open(path)) for path in (first, second)]
        names = (first.resolve().name, second.resolve().name)
        if names[0] == names[1]:
            names = (str(first), str(second))
        out.write_text(comparison(results[0], results[1], names), encoding="utf-8")
    typer.echo(f"wrote {out}")


def report(folder: ScenarioFolder, as_json: JsonOption = False) -> None:
    """Write a run's summary and report again; also of a run that was killed before it could."""
    from loadtest.run import write_report
    from loadtest.run_folder import RunFolder

    with _one_line():
        opened = RunFolder.open(folder)
        results = write_report(opened)
    _print(results, opened.report, as_json)


def worker(
    master: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where a load test runs with --master PORT.")],
) -> None:
    """Send a share of another machine's load test, then end. The clocks of the machines should agree."""
    import subprocess

    host, _, port = master.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgumentError(f"{master!r} is not of the form HOST:PORT")
    _check_installed()
    raise typer.Exit(subprocess.call([sys.executable, "-m", "loadtest.generator.worker", host, port]))


@contextmanager
def _one_line() -> Iterator[None]:
    """What is wrong with a load is the user's to mend, and said as such."""
    from loadtest.errors import RunError
    from workload.errors import WorkloadError

    try:
        yield
    except (RunError, WorkloadError) as error:
        raise InvalidArgumentError(str(error)) from error


def _check_installed() -> None:
    if find_spec("locust") is None:
        raise InvalidArgumentError("load tests need Locust, which is not installed: pip install 'hplm[loadtest]'")


def _checked_by_server(target: Target, content: Content) -> Content:
    from loadtest.server import check_hplms

    with Console(stderr=True).status(f"asking {target.url} for {len(content.hplms):,} hPLMs"):
        return dataclasses.replace(content, pairs=check_hplms(target, content.hplms))


def _calibrate(target: Target, content: Content, shape: Shape, seed: int) -> float:
    from loadtest.capacity import measure_capacity

    rate = float(_CALIBRATION_ROWS)
    rows = scenario_of("overload", dataclasses.replace(shape, arrivals=None, rate=rate, load=None, duration=1.0), 1.0)
    with Console(stderr=True).status("measuring the server's capacity"):
        return measure_capacity(target, _drawn(rows, content, seed), _CALIBRATION_S)


def _drawn(scenario: Scenario, content: Content, seed: int) -> Schedule:
    import numpy as np

    return scenario.schedule(content, np.random.default_rng(seed))


def _play(
    folder: Any,
    schedule: Schedule,
    target: Target,
    workers: int,
    master: int | None,
    settings: dict[str, Any],
    max_lateness_ms: float,
) -> Results:
    from builder.serving import stop_signals_interrupt
    from cli.loadtest_progress import shown_progress
    from loadtest.run import LoadTest, Playback
    from loadtest.workers import Workers

    with stop_signals_interrupt(), shown_progress(schedule) as watcher:
        try:
            test = LoadTest(schedule, target, Workers(workers, master), settings, max_lateness_ms)
            return Playback(folder, test, watcher).play()
        except KeyboardInterrupt as stop:
            typer.echo(f"hplm: interrupted; {folder.report} shows what came back until then", err=True)
            raise typer.Exit(_INTERRUPTED) from stop


def _print(results: Results, path: Path, as_json: bool) -> None:
    from loadtest.report import notices, printed_rows

    if as_json:
        print_json(dict(results.summary))
        return
    table = Table(show_header=False)
    for label, value in printed_rows(results.summary):
        table.add_row(label, value)
    Console().print(table)
    for notice in notices(results):
        typer.echo(notice, err=True)
    typer.echo(f"wrote {path}")
