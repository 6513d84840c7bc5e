"""Commands about the server: export, serve, infer, doctor."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from backends.errors import InvalidArgumentError
from backends.home import HOME_VARIABLE, Home
from backends.lower.settings import FillingSettings, Missing
from backends.scheduling.admission_settings import AdmissionSettings, parse_weights
from backends.scheduling.ageing import Ageing
from backends.scheduling.fair_share import ShareSettings
from backends.scheduling.settings import POLICY_VARIABLE, DasSettings, PolicyName, PolicySettings
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_json, print_rows
from cli.session import open_home

if TYPE_CHECKING:
    from backends.registry.registry import Registry
    from builder.export import ExportSettings
    from builder.serving import TritonServer

_ANY_PORT = 0
_MAX_SLOTS = 65_536
"""Far more than fit on any device."""


def register(app: typer.Typer) -> None:
    for command in (export, serve, infer, doctor):
        app.command()(command)


def export(
    home: HomeOption = DEFAULT_HOME,
    dtype: Annotated[Literal["bf16", "fp32"], typer.Option(help="What the upper layers compute in.")] = "bf16",
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="Where the upper layers run.")] = "cpu",
    slots: Annotated[
        int, typer.Option(help="Adapters on the device at once: those of the running batch and of the next.")
    ] = 128,
    missing: Annotated[
        Missing,
        typer.Option(
            help="For a fragment that no table holds: a shorter one answers (fallback), it is computed at once and "
            "kept (compute), or a shorter one answers until it was computed in the background (learn)."
        ),
    ] = Missing.LEARN,
    overlay_mb: Annotated[
        int, typer.Option(help="Memory for fragments that were computed, of one root in one process.")
    ] = 256,
    compute_limit: Annotated[
        int,
        typer.Option(
            help="With --missing compute: fragments computed while one batch waits; shorter ones answer for the rest, "
            "which is computed in the background."
        ),
    ] = 512,
    lower_instances: Annotated[int, typer.Option(help="Processes that look texts up.")] = 2,
    lower_threads: Annotated[
        int, typer.Option(help="Threads of each of them; more than one helps only where much is computed.")
    ] = 1,
    max_batch_size: Annotated[int, typer.Option(help="Rows in one request or batch, at most.")] = 64,
    policy: Annotated[PolicyName, typer.Option(help="Which waiting requests make the next batch.")] = PolicyName.FCFS,
    eta: Annotated[
        float, typer.Option(help="With das and slotted-das: the share of a batch that the shortest requests fill.")
    ] = DasSettings.eta,
    q: Annotated[
        float,
        typer.Option(
            help="With das and slotted-das: the rest goes by deadlines to those worth this share of the shortest."
        ),
    ] = DasSettings.q,
    patience_ms: Annotated[
        int,
        typer.Option(
            help="A request without a deadline that has waited so long gets a part of the batches; with all but fcfs."
        ),
    ] = Ageing.patience_us // 1000,
    max_tokens: Annotated[int, typer.Option(help="Tokens in one batch of the upper half, at most.")] = 4096,
    mode: Annotated[
        Literal["engine", "triton"],
        typer.Option(help="Who chooses the batches of the upper half: its engine, or Triton with a plugin of ours."),
    ] = "engine",
    plugin: Annotated[
        Path | None, typer.Option(help="With --mode triton: take this built deadline batcher instead of building one.")
    ] = None,
    queue_delay_us: Annotated[
        int, typer.Option(help="With --mode triton: how long Triton waits for a batch to fill while nothing runs.")
    ] = 1000,
    max_waiting: Annotated[int, typer.Option(help="Rows that wait for the engine, at most.")] = 10_000,
    tenant_quota: Annotated[
        int | None, typer.Option(help="Rows of one tenant that wait, at most. \\[default: half of all]")
    ] = None,
    tenant_weight: Annotated[
        list[str] | None,
        typer.Option(help="A tenant's part of the device while others want some, as tenant=weight; may be repeated."),
    ] = None,
    burst_ms: Annotated[
        int, typer.Option(help="Device time that a tenant may ask for at once before it stands behind others.")
    ] = 50,
    admission: Annotated[
        bool,
        typer.Option("--admission/--no-admission", help="Refuse at once what is predicted to miss its deadline."),
    ] = True,
    margin_percent: Annotated[
        int, typer.Option(help="By how much longer predictions are taken than they are, at least.")
    ] = 25,
) -> None:
    """Render the Triton model repository; the same folder runs in NVIDIA's container."""
    from builder.export import ExportSettings, render_repository
    from builder.export.plugin import with_plugin

    if not 1 <= slots <= _MAX_SLOTS:
        raise InvalidArgumentError(f"--slots must be 1 to {_MAX_SLOTS}, not {slots}")
    if lower_threads < 1:
        raise InvalidArgumentError("--lower-threads must be at least 1")
    if max_tokens < 1:
        raise InvalidArgumentError("--max-tokens must be at least 1")
    scheduling = PolicySettings(policy, DasSettings(eta, q), Ageing(1000 * patience_ms))
    opened, registry = open_home(home)
    shares = ShareSettings(parse_weights(",".join(tenant_weight or [])), 1000.0 * burst_ms)
    waiting = AdmissionSettings(max_waiting, tenant_quota, admission, margin_percent, shares)
    upper = {
        "dtype": dtype,
        "slots": str(slots + 1),
        "max_rows": str(max_batch_size),
        "max_tokens": str(max_tokens),
        **scheduling.parameters,
        **waiting.parameters,
    }
    settings = ExportSettings(
        max_batch_size=max_batch_size,
        lower_instances=lower_instances,
        device=device,
        mode=mode,
        queue_delay_us=queue_delay_us,
        plugin=plugin,
        lower_parameters={
            "threads": str(lower_threads),
            **FillingSettings(missing, overlay_mb, compute_limit).parameters,
        },
        upper_parameters=upper,
    )
    if mode == "triton":
        settings = _with_cost_model(settings, opened, registry)
    with with_plugin(settings, on_failure=_complain) as complete:
        render_repository(opened.repository, complete)
    typer.echo(f"rendered {opened.repository}")


def serve(
    home: HomeOption = DEFAULT_HOME,
    http: Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")] = 8000,
    grpc: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = 8001,
    metrics: Annotated[int, typer.Option(help="Metrics port; 0 takes a free one.")] = 8002,
    address: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for every network.")] = "127.0.0.1",
    log_verbose: Annotated[int, typer.Option(help="Triton's own verbosity.")] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Write there, at the end, what ran when: a Chrome trace of the pipeline.")
    ] = None,
    policy: Annotated[
        PolicyName | None,
        typer.Option(envvar=POLICY_VARIABLE, help="For this run; without it the export's, see hplm export."),
    ] = None,
) -> None:
    """Start Triton on the home's repository and stay until Ctrl-C; hPLMs made meanwhile are served at once."""
    from builder.serving import ServerConfig, TritonServer, stop_signals_interrupt, traced

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
        environment={HOME_VARIABLE: str(opened.path.absolute())} | ({POLICY_VARIABLE: policy.value} if policy else {}),
    )
    with traced(config, trace, on_trace=typer.echo) as config, stop_signals_interrupt():
        try:
            _stay(TritonServer(config, on_log=lambda line: typer.echo(line, err=True)))
        except KeyboardInterrupt:
            typer.echo("stopped")


def infer(
    id: Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT…", help="Texts; '-' reads lines of stdin. A TAB parts the halves of a pair."),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="The second half of a pair, whose first half is TEXT.")] = None,
    url: Annotated[str, typer.Option(help="grpc://host:port or http://host:port.")] = "grpc://localhost:8001",
    deadline_ms: Annotated[int | None, typer.Option(help="Refuse rather than answer later than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running server."""
    from cli.asking import answer_as_json, lines_of, request_of, shown_answer
    from hplm_client import ClientError, HplmClient

    if texts is None and sys.stdin.isatty():
        raise InvalidArgumentError("give a text, or '-' to read lines from the terminal")
    wanted = lines_of(sys.stdin.buffer) if texts in (None, ["-"]) else texts or []
    rows = [request_of(id, text, pair) for text in wanted]
    with HplmClient(url) as client:
        outcomes = client.infer_many(rows, on_error="return", deadline_ms=deadline_ms)
    errors = [outcome for outcome in outcomes if isinstance(outcome, ClientError)]
    if as_json:
        print_json([answer_as_json(outcome) for outcome in outcomes])
    elif len(errors) < len(outcomes):
        asked = zip(wanted, outcomes, strict=True)
        print_rows([shown_answer(text, one) for text, one in asked if not isinstance(one, ClientError)], id, as_json)
    if errors and len(outcomes) > 1:
        first = next(number for number, one in enumerate(outcomes, start=1) if isinstance(one, ClientError))
        typer.echo(f"{len(errors)} of {len(outcomes)} texts were not answered, number {first} as the first", err=True)
    if errors:
        raise errors[0]


def doctor(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Say what is missing on this machine and how to get it."""
    from builder.doctor import checks_as_json, doctor_report, has_failure, run_checks

    checks = run_checks(home)
    if as_json:
        print_json(checks_as_json(checks))
    else:
        Console().print(doctor_report(checks))
    if has_failure(checks):
        raise typer.Exit(1)


def _with_cost_model(settings: ExportSettings, home: Home, registry: Registry) -> ExportSettings:
    from builder.export.cost_model import dearest_cost_model

    roots = sorted({entry.domain.root for entry in registry.hplms()})
    return dataclasses.replace(settings, cost_model=dearest_cost_model(home, roots, settings, _complain))


def _complain(line: str) -> None:
    typer.echo(line, err=True)


def _stay(server: TritonServer) -> None:
    from builder.serving import ServerStartError

    with server:
        typer.echo(f"ready: grpc://{server.grpc_url}  http://{server.http_url}  metrics {server.metrics_url}")
        if code := server.wait():
            raise ServerStartError(f"tritonserver ended by itself with code {code}: {server.failure_reason()}")


def _port(port: int) -> int | None:
    return None if port == _ANY_PORT else port
