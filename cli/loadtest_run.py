"""One load test as it was typed: from its options to its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from backends.errors import InvalidArgumentError
from cli.exit_codes import FAILED, THRESHOLD_MISSED
from cli.loadtest_options import ContentOptions, RunOptions, TargetOptions
from cli.options import print_json, print_table
from cli.stopping import exit_code_of

if TYPE_CHECKING:
    from loadtest.results import Results
    from loadtest.run import LoadTest
    from loadtest.run_folder import RunFolder
    from loadtest.scenarios import Content, Scenario
    from loadtest.schedule import Schedule

_SHOWN_HPLMS = 20
_CALIBRATION_S = 6.0
_UNRECORDED = ("home", "as_json", "out", "hplm")


class LoadTestRun:
    """Checks the options, asks the server for its hPLMs, plays the scenario, and prints the summary."""

    def __init__(self, context: typer.Context, target: TargetOptions, content: ContentOptions, run: RunOptions) -> None:
        check_installed()
        self._scenario_name = str(context.info_name)
        self._options = run
        self._target = target.target()
        self._content = content.content()
        self._lateness_limit_ms = run.max_lateness_ms()
        self._settings: dict[str, Any] = {"scenario": self._scenario_name, **_recorded(context.params)}

    def play(self, scenario: Scenario) -> None:
        self._play(lambda content: scenario)

    def play_at_capacity(self, scenario_at: Callable[[float], Scenario], calibration: Scenario) -> None:
        """Measure the server's capacity by the rows of another scenario, then play the scenario for that capacity."""

        def make(content: Content) -> Scenario:
            capacity_per_s = self._measured_capacity(self._drawn(calibration, content))
            self._settings["measured_capacity_per_s"] = round(capacity_per_s, 1)
            typer.echo(f"the server can do {capacity_per_s:,.1f} requests/s", err=True)
            return scenario_at(capacity_per_s)

        self._play(make)

    def _play(self, make_scenario: Callable[[Content], Scenario]) -> None:
        from loadtest.figures import errors
        from loadtest.run import LoadTest
        from loadtest.run_folder import RunFolder, State

        with _new_folder(self._options.folder(self._scenario_name)) as path:
            folder = RunFolder.create(path)
            content = self._checked_by_server()
            schedule = self._drawn(make_scenario(content), content)
        self._settings |= {"hplms": len(content.hplms), "requests_planned": len(schedule)}
        if len(schedule):
            typer.echo(f"sending {len(schedule):,} requests within {schedule.times_s[-1]:,.1f} s", err=True)
        workers = self._options.senders()
        test = LoadTest(schedule, self._target, workers, self._settings, self._lateness_limit_ms)
        results = _played(folder, test)
        print_results(results, folder.report, self._options.as_json)
        if errors(results.summary) or results.run["state"] == State.FAILED:
            raise typer.Exit(FAILED)
        if not results.summary["sending"]["valid"]:
            raise typer.Exit(THRESHOLD_MISSED)

    def _checked_by_server(self) -> Content:
        from loadtest.server import check_hplms

        hplms, level = self._content.hplms, self._content.level
        with Console(stderr=True).status(f"asking {self._target.url} for {len(hplms):,} hPLMs"):
            return dataclasses.replace(self._content, pairs=check_hplms(self._target, hplms, level))

    def _measured_capacity(self, rows: Schedule) -> float:
        from loadtest.capacity import measure_capacity

        with Console(stderr=True).status("measuring the server's capacity"):
            return measure_capacity(self._target, rows, _CALIBRATION_S)

    def _drawn(self, scenario: Scenario, content: Content) -> Schedule:
        import numpy as np

        return scenario.schedule(content, np.random.default_rng(self._options.seed))


def print_results(results: Results, path: Path, as_json: bool) -> None:
    from loadtest.report import (
        BREAKDOWN_HEAD,
        LEVELS_HEAD,
        breakdown_rows,
        level_rows,
        notices,
        printed_rows,
    )

    if as_json:
        print_json(dict(results.summary))
        return
    capacity_per_s = results.run["settings"].get("measured_capacity_per_s")
    measured = [] if capacity_per_s is None else [("capacity, measured before", f"{capacity_per_s:,.1f} /s")]
    print_table([*measured, *printed_rows(results.summary)])
    if levels := results.summary["by_level"]:
        print_table(level_rows(levels), LEVELS_HEAD)
    lines = results.summary["by_hplm"]
    if 1 < len(lines) <= _SHOWN_HPLMS:
        print_table(breakdown_rows(lines), ("hPLM", *BREAKDOWN_HEAD[1:]))
    for notice in notices(results):
        typer.echo(notice, err=True)
    typer.echo(f"wrote {path}")


def check_installed() -> None:
    if find_spec("locust") is None:
        raise InvalidArgumentError("load tests need Locust, which is not installed: pip install 'hplm[loadtest]'")


def _played(folder: RunFolder, test: LoadTest) -> Results:
    from builder.termination import stop_signals_interrupt
    from cli.loadtest_progress import shown_progress
    from loadtest.run import Playback

    with stop_signals_interrupt(), shown_progress(test.schedule) as watcher:
        try:
            return Playback(folder, test, watcher).play()
        except KeyboardInterrupt as stop:
            typer.echo(f"hplm: interrupted; {folder.report} shows what came back until then", err=True)
            raise typer.Exit(exit_code_of(stop)) from stop


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Remove the folder again if nothing was written because the load could not begin."""
    existed = path.exists()
    try:
        yield path
    except BaseException:
        if not existed and path.exists():
            path.rmdir()
        raise


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the report shows them."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in options.items()
        if value is not None and name not in _UNRECORDED
    }
