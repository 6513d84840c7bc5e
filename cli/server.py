"""Commands about the server: serve and doctor; export and infer have files of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from backends.home import HOME_VARIABLE, Home
from cli.export import export
from cli.infer import infer
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_rows
from cli.ports import Listener, require_server_ports
from cli.serving_options import ListenOptions, LogOptions, RestartOptions, RunOptions, TlsOptions, opened_for_callers

if TYPE_CHECKING:
    from builder.export.of_run import SettingsOfRun
    from builder.serving import ServerConfig, Supervision, Supervisor, TritonServer

_AT_ONCE = "stopping at once; requests that were not answered yet are not answered"


def register(app: typer.Typer) -> None:
    for command in (grouped(export), grouped(serve), infer, doctor):
        app.command()(command)


@dataclass(frozen=True)
class PortOptions:
    http: Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")] = 8000
    grpc: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = 8001
    metrics: Annotated[int, typer.Option(help="Metrics port; 0 takes a free one.")] = 8002
    metrics_address: Annotated[
        str | None,
        typer.Option(help="Where metrics listen, which anybody may read there. \\[default: that of --address]"),
    ] = None
    health_port: Annotated[
        int | None,
        typer.Option(help="Port of /readyz and other probes; 0 takes a free one. \\[default: the one after --metrics]"),
    ] = None
    health_address: Annotated[str, typer.Option(help="Where the health port listens; 0.0.0.0 for every network.")] = (
        "127.0.0.1"
    )


def serve(
    *,
    home: HomeOption = DEFAULT_HOME,
    ports: PortOptions,
    listen: ListenOptions,
    run: RunOptions,
    restarts: RestartOptions,
    log: LogOptions,
    tls: TlsOptions,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Triton's log on the screen, too; without it, its errors only.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write there, at the end, what ran when: a Chrome trace of the pipeline.")
    ] = None,
) -> None:
    """Start Triton on the home's repository and stay until Ctrl-C; hPLMs made meanwhile are served at once."""
    from builder.serving import ServerConfig, traced
    from builder.serving.own_log import own_log

    supervision = _supervision(ports, listen.address, restarts)
    _require_free(ports, listen.address, supervision)
    opened, callers = opened_for_callers(home, listen, run)
    with own_log(opened.run) as log_path:
        config = ServerConfig(
            repository=opened.repository,
            address=listen.address,
            metrics_address=ports.metrics_address,
            http_port=ports.http or None,
            grpc_port=ports.grpc or None,
            metrics_port=ports.metrics or None,
            tls=tls.tls,
            log_path=log_path,
            log_verbose=log.log_verbose,
            max_log_bytes=log.max_bytes,
            ready_timeout_s=restarts.ready_timeout_s,
            environment={HOME_VARIABLE: str(opened.path), **run.settings.environment},
        )
        with traced(config, trace, on_trace=typer.echo) as config:
            serve_until_stopped(
                config,
                run.settings,
                on_ready=lambda _: typer.echo(callers, err=True),
                show_log=verbose,
                supervision=supervision,
            )


def _supervision(ports: PortOptions, address: str, restarts: RestartOptions) -> Supervision:
    from builder.serving import Supervision

    health_port = require_server_ports(
        Listener(address, ports.http),
        Listener(address, ports.grpc),
        Listener(ports.metrics_address or address, ports.metrics),
        ports.health_address,
        ports.health_port,
    )
    return Supervision(
        health_address=ports.health_address,
        health_port=health_port,
        drain_s=restarts.drain_s,
        max_restarts=restarts.max_restarts,
    )


def _require_free(ports: PortOptions, address: str, supervision: Supervision) -> None:
    from builder.serving.ports import require_free

    require_free(
        {
            "--http": (address, ports.http or None),
            "--grpc": (address, ports.grpc or None),
            "--metrics": (ports.metrics_address or address, ports.metrics or None),
            "--health-port": (ports.health_address, supervision.health_port),
        }
    )


def doctor(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Say what is missing on this machine and how to get it."""
    from builder.doctor import checks_as_json, doctor_report, has_failure, run_checks

    checks = run_checks(home)
    if as_json or not sys.stdout.isatty():
        print_rows(checks_as_json(checks), "checks", as_json)
    else:
        Console().print(doctor_report(checks))
    if has_failure(checks):
        raise typer.Exit(1)


def serve_until_stopped(
    config: ServerConfig,
    of_run: SettingsOfRun | None = None,
    on_ready: Callable[[TritonServer], None] | None = None,
    show_log: bool = False,
    supervision: Supervision | None = None,
) -> None:
    """Run Triton until Ctrl-C or SIGTERM, and restart it where it dies; `on_ready` is called once it answers.

    The log goes to the file that the configuration names. Without `show_log` only complaints reach the screen, and the
    last lines where Triton does not start.

    Raises:
        ServerStartError: Triton did not start, or has died too often.
    """
    from builder.cpu_flags import cpu_flags
    from builder.export.in_force import changes_of_run, configurations_of_run, effective_settings, in_one_line
    from builder.export.of_run import SettingsOfRun
    from builder.serving import Supervision, Supervisor
    from builder.serving.log import is_complaint
    from builder.serving.served_hplms import some_hplms
    from builder.serving.watchdog_log import is_of_watchdog, note
    from builder.termination import stop_requests

    def show(line: str) -> None:
        is_shown_already = is_of_watchdog(line)
        if not is_shown_already and (show_log or is_complaint(line)):
            typer.echo(line, err=True)

    settings = effective_settings(config.repository)
    changes = changes_of_run(config.repository, of_run or SettingsOfRun(), cpu_flags())
    config = replace(config, configurations=configurations_of_run(config.repository, changes))
    served = Home(Path(config.environment[HOME_VARIABLE]))
    find_hplms, report = partial(some_hplms, served), partial(_report, config.log_path)
    with (
        stop_requests() as stop,
        Supervisor(config, supervision or Supervision(), find_hplms, stop, report, show) as supervisor,
        _end_told(supervisor, config.log_path, with_last_lines=not show_log),
    ):
        try:
            if supervisor.start(partial(_say_starting, config.log_path)):
                server, health = supervisor.server, f"{supervisor.health_url}/readyz"
                typer.echo(f"settings: {in_one_line(settings, changes)}", err=True)
                grpc_url = f"{server.grpc_url}{'' if config.tls is None else ' (TLS)'}"
                urls = f"grpc://{grpc_url}  http://{server.http_url}  metrics {server.metrics_url}"
                typer.echo(f"ready: {urls}  health {health}")
                note(config.log_path, f"ready: {urls}  health {health}")
                if on_ready is not None:
                    on_ready(server)
                supervisor.stay()
        except KeyboardInterrupt:
            typer.echo(_AT_ONCE, err=True)
            note(config.log_path, _AT_ONCE)
    typer.echo("stopped")
    note(config.log_path, "stopped")


def _say_starting(log_path: Path | None) -> None:
    if log_path is not None:
        typer.echo(f"starting Triton; its log is {log_path}", err=True)


def _report(log_path: Path | None, line: str) -> None:
    """Show a line of the watchdog's, with the time, and write it into the log, too; the server goes on without both."""
    from builder.serving.watchdog_log import note, with_time

    with suppress(OSError):
        typer.echo(with_time(line), err=True)
    note(log_path, line)


@contextmanager
def _end_told(supervisor: Supervisor, log_path: Path | None, with_last_lines: bool) -> Iterator[None]:
    """Show the end of the log where the server does not start, or is given up, and write there why."""
    from builder.serving import ServerNotReadyError, ServerStartError
    from builder.serving.watchdog_log import note

    try:
        yield
    except (ServerStartError, ServerNotReadyError) as error:
        lines = supervisor.server.last_lines() if with_last_lines else []
        if lines:
            typer.echo("\n".join(("the log ends with:", *(f"  {line}" for line in lines))), err=True)
        note(log_path, str(error))
        raise
