"""Commands about the server: export, serve, infer, doctor."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Literal

import typer
from rich.console import Console

from backends.errors import InvalidArgumentError
from builder.doctor import checks_as_json, doctor_report, has_failure, run_checks
from builder.export import ExportSettings, render_repository
from builder.serving import ServerConfig, ServerStartError, TritonServer, stop_signals_interrupt
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_json, print_rows
from cli.session import open_home
from clients import Classification, ClientError, HplmClient

_ANY_PORT = 0


def register(app: typer.Typer) -> None:
    for command in (export, serve, infer, doctor):
        app.command()(command)


def export(
    home: HomeOption = DEFAULT_HOME,
    dtype: Annotated[Literal["bf16", "fp32"], typer.Option(help="What the upper layers compute in.")] = "bf16",
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="Where the upper layers run.")] = "cpu",
    slots: Annotated[int, typer.Option(help="Adapters on the device at once.")] = 64,
    lower_instances: Annotated[int, typer.Option(help="Processes that look texts up.")] = 2,
    max_batch_size: Annotated[int, typer.Option(help="Rows in one request or batch, at most.")] = 64,
) -> None:
    """Render the Triton model repository; the same folder runs in NVIDIA's container."""
    if slots < 1:
        raise InvalidArgumentError("--slots must be at least 1")
    opened, _ = open_home(home)
    upper = {"dtype": dtype, "slots": str(slots + 1), "max_rows": str(max_batch_size)}
    settings = ExportSettings(
        max_batch_size=max_batch_size, lower_instances=lower_instances, device=device, upper_parameters=upper
    )
    render_repository(opened.repository, settings)
    typer.echo(f"rendered {opened.repository}")


def serve(
    home: HomeOption = DEFAULT_HOME,
    http: Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")] = 8000,
    grpc: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = 8001,
    metrics: Annotated[int, typer.Option(help="Metrics port; 0 takes a free one.")] = 8002,
    address: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for every network.")] = "127.0.0.1",
    log_verbose: Annotated[int, typer.Option(help="Triton's own verbosity.")] = 0,
) -> None:
    """Start Triton on the home's repository and stay until Ctrl-C; hPLMs made meanwhile are served at once."""
    opened, _ = open_home(home)
    if not opened.repository.exists():
        export(home)
    config = ServerConfig(
        repository=opened.repository,
        address=address,
        http_port=_port(http),
        grpc_port=_port(grpc),
        metrics_port=_port(metrics),
        log_path=opened.run / "server.log",
        log_verbose=log_verbose,
        environment={"HPLM_HOME": str(opened.path)},
    )
    with stop_signals_interrupt():
        try:
            _stay(TritonServer(config, on_log=lambda line: typer.echo(line, err=True)))
        except KeyboardInterrupt:
            typer.echo("stopped")


def infer(
    id: Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts; '-' reads lines of stdin.")] = None,
    url: Annotated[str, typer.Option(help="grpc://host:port or http://host:port.")] = "grpc://localhost:8001",
    deadline_ms: Annotated[int | None, typer.Option(help="Refuse rather than answer later than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running server."""
    if texts is None and sys.stdin.isatty():
        raise InvalidArgumentError("give a text, or '-' to read lines from the terminal")
    wanted = [line.rstrip("\n") for line in sys.stdin] if texts in (None, ["-"]) else texts or []
    with HplmClient(url) as client:
        outcomes = client.infer_many([(id, text) for text in wanted], on_error="return", deadline_ms=deadline_ms)
    answers = [outcome for outcome in outcomes if not isinstance(outcome, ClientError)]
    if as_json:
        print_json([dataclasses.asdict(answer) for answer in answers])
    elif answers:
        rows = [
            {
                "text": text if len(text) < 60 else text[:57] + "…",
                "answer": answer.label,
                "score": f"{answer.score:.3f}",
            }
            for text, answer in zip(wanted, outcomes, strict=True)
            if isinstance(answer, Classification)
        ]
        print_rows(rows, id, as_json=False)
    for outcome in outcomes:
        if isinstance(outcome, ClientError):
            raise outcome


def doctor(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Say what is missing on this machine and how to get it."""
    checks = run_checks(home)
    if as_json:
        print_json(checks_as_json(checks))
    else:
        Console().print(doctor_report(checks))
    if has_failure(checks):
        raise typer.Exit(1)


def _stay(server: TritonServer) -> None:
    with server:
        typer.echo(f"ready: grpc://{server.grpc_url}  http://{server.http_url}  metrics {server.metrics_url}")
        if code := server.wait():
            raise ServerStartError(f"tritonserver ended by itself with code {code}: {server.failure_reason()}")


def _port(port: int) -> int | None:
    return None if port == _ANY_PORT else port
