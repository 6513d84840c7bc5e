"""Commands about several servers behind a gateway."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backends.errors import InvalidArgumentError, UnavailableError
from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.scheduling.settings import POLICY_VARIABLE, PolicyName
from cli.export import export
from cli.listening import INSECURE_VARIABLE, auth_of_run, require_guarded, who_may_ask
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RecordTrafficOption, print_json, print_rows, read_span_s
from cli.session import open_home

if TYPE_CHECKING:
    from builder.fleet.settings import FleetSettings

app = typer.Typer(help="Several servers behind a gateway, which keeps each tenant with one of them.")
_BALANCE = "Open requests of a server over the mean of all, in percent, beyond which others take some; 0: no bound."
BalanceOption = Annotated[int, typer.Option(help=_BALANCE)]
HttpOption = Annotated[int, typer.Option(help="The gateway's HTTP port; 0 takes a free one.")]
GrpcOption = Annotated[int, typer.Option(help="The gateway's gRPC port; 0 takes a free one.")]
CertificateOption = Annotated[Path | None, typer.Option(help="Encrypt both ports with this certificate (PEM).")]
KeyOption = Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")]
ClientCaOption = Annotated[
    Path | None, typer.Option(help="Pass only clients with a certificate that one of these has signed (PEM).")
]


@app.command()
def serve(
    home: HomeOption = DEFAULT_HOME,
    servers: Annotated[int, typer.Option(help="How many; each needs its own memory.")] = 2,
    http: HttpOption = 8000,
    grpc: GrpcOption = 8001,
    health_port: Annotated[int, typer.Option(help="The fleet's /readyz and orders; 0 takes a free one.")] = 8003,
    first_port: Annotated[
        int,
        typer.Option(
            help="Server k has the four ports from this + 10 (k - 1) on: HTTP, gRPC, metrics, health; 0: free ones."
        ),
    ] = 8010,
    address: Annotated[
        str, typer.Option(help="Where the gateway listens; 0.0.0.0, every network, needs --auth tokens or --insecure.")
    ] = "127.0.0.1",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar=INSECURE_VARIABLE,
            help="Listen beyond this machine without tokens: every caller there may ask every tenant's hPLMs.",
        ),
    ] = False,
    balance: BalanceOption = 125,
    own_cores: Annotated[
        bool, typer.Option("--own-cores/--shared-cores", help="Each server computes on cores of its own, or on all.")
    ] = True,
    gpus: Annotated[
        str | None, typer.Option(help="What each server sees as its GPUs, one of these for each: 0,1 for two servers.")
    ] = None,
    drain: Annotated[
        str, typer.Option(help="How long a server that is to stop may finish what it accepted: 30s, 2m; 0: not at all.")
    ] = "30s",
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts of a server, and of the gateway, within ten minutes.")
    ] = 5,
    log_mb: Annotated[int, typer.Option(min=1, help="Size of each server's log, at most.")] = 64,
    log_verbose: Annotated[int, typer.Option(help="Triton's own verbosity.")] = 0,
    policy: Annotated[
        PolicyName | None,
        typer.Option(envvar=POLICY_VARIABLE, help="For this run; without it the export's, see hplm export."),
    ] = None,
    auth: Annotated[
        Auth | None, typer.Option(envvar=AUTH_VARIABLE, help="For this run: off, or tokens; without it the export's.")
    ] = None,
    record_traffic: RecordTrafficOption = None,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    tls_client_ca: ClientCaOption = None,
) -> None:
    """Start servers on the home's repository, and Envoy in front of them; stay until Ctrl-C."""
    from builder.export.of_run import SettingsOfRun
    from builder.fleet.settings import FleetSettings
    from builder.serving.tls import tls_of

    opened, registry = open_home(home)
    auth_in_force = auth_of_run(opened.repository, auth)
    require_guarded(address, asks_for_tokens=auth_in_force is Auth.TOKENS, is_insecure=insecure)
    settings = FleetSettings(
        num_servers=servers,
        address=address,
        http=http or None,
        grpc=grpc or None,
        health_port=health_port or None,
        first_port=first_port or None,
        balance=balance,
        tls=tls_of(tls_cert, tls_key, tls_client_ca),
        drain_s=read_span_s(drain, "--drain"),
        max_restarts=max_restarts,
        max_log_bytes=log_mb << 20,
        log_verbose=log_verbose,
        of_run=SettingsOfRun(policy and policy.value, auth and auth.value, record_traffic),
        gpus=tuple(part.strip() for part in gpus.split(",")) if gpus else (),
        own_cores=own_cores,
    )
    if not opened.repository.exists():
        export(home)
    _serve_until_stopped(opened, settings, who_may_ask(auth_in_force, registry))


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show the servers of the fleet that runs on the home, and what its gateway has sent to each."""
    from builder.fleet.control import server_rows
    from builder.fleet.fleet_folder import FleetFolder

    state = FleetFolder(Home(home)).running()
    rows = server_rows(state)
    if as_json:
        gateway = {name: value for name, value in vars(state.gateway).items() if name != "admin"}
        print_json({"pid": state.pid, "health": state.health, "gateway": gateway, "servers": rows})
        return
    shown = ("server", "state", "in_gateway", "requests", "open", "restarts", "pid", "reason")
    print_rows([{name: row[name] for name in shown} for row in rows], "servers", as_json=False)
    gateway_line = f"gateway {state.gateway.state}: grpc://{state.gateway.grpc}  http://{state.gateway.http}"
    typer.echo(f"{gateway_line}  health {state.health}/readyz", err=True)


@app.command()
def drain(
    servers: Annotated[list[str], typer.Argument(metavar="SERVER…", help="Such as server-1; several in turn.")],
    home: HomeOption = DEFAULT_HOME,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Start it again afterwards, with what is exported and installed by then."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Even the last server that is ready.")] = False,
) -> None:
    """Take servers out of the gateway, let them finish what they accepted, and stop them; the others go on."""
    from builder.fleet.control import order
    from builder.fleet.fleet_folder import FleetFolder

    state = FleetFolder(Home(home)).running()
    for server in servers:
        typer.echo(f"{server}: draining", err=True)
        undone = order(state, "restart" if restart else "drain", server, force=force)
        if undone:
            raise UnavailableError(f"{server}: {'; '.join(undone)}")
        typer.echo(f"{server}: {'ready again' if restart else 'drained and stopped'}")


@app.command()
def config(
    hosts: Annotated[
        Path,
        typer.Option(help="The servers, in TOML: [[server]] with name, address and, where they differ, ports."),
    ],
    address: Annotated[str, typer.Option(help="Where the gateway listens.")] = "0.0.0.0",
    http: Annotated[int, typer.Option(help="The gateway's HTTP port.")] = 8000,
    grpc: Annotated[int, typer.Option(help="The gateway's gRPC port.")] = 8001,
    balance: BalanceOption = 125,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    tls_client_ca: ClientCaOption = None,
    out: Annotated[Path | None, typer.Option(help="Write it there; without it, on the screen.")] = None,
) -> None:
    """Print Envoy's configuration for servers on other machines: hplm serve on each, with --health-address."""
    from builder.fleet.gateway_config import GatewaySettings, gateway_config
    from builder.fleet.hosts import read_hosts
    from builder.serving.tls import tls_of

    settings = GatewaySettings(
        address=address, http=http, grpc=grpc, balance=balance, tls=tls_of(tls_cert, tls_key, tls_client_ca)
    )
    text = json.dumps(gateway_config(settings, read_hosts(hosts)), indent=2)
    if out is None:
        typer.echo(text)
        return
    if out.exists() and not out.is_file():
        raise InvalidArgumentError(f"{out} is no file")
    out.write_text(f"{text}\n", encoding="utf-8")
    typer.echo(f"wrote {out}; start it with envoy --config-path {out}", err=True)


def _serve_until_stopped(home: Home, settings: FleetSettings, callers: str) -> None:
    from builder.cpu_flags import cpu_flags
    from builder.export.in_force import changes_of_run, effective_settings, in_one_line
    from builder.fleet.fleet import Fleet
    from builder.serving.watchdog_log import with_time
    from builder.termination import stop_requests

    in_force = effective_settings(home.repository)
    changes = changes_of_run(home.repository, settings.of_run, cpu_flags())

    def report(line: str) -> None:
        with suppress(OSError):  # a screen that is gone
            typer.echo(with_time(line), err=True)

    with stop_requests() as stop, Fleet(home, settings, stop, report) as fleet:
        typer.echo(f"starting {settings.num_servers} servers; their logs are in {home.run / 'fleet'}", err=True)
        try:
            if fleet.start():
                typer.echo(f"settings: {in_one_line(in_force, changes)}", err=True)
                typer.echo(f"ready: {fleet.front.urls}  health {fleet.health_url}/readyz")
                typer.echo(callers, err=True)
                fleet.stay()
        except KeyboardInterrupt:
            typer.echo("stopping at once; requests that were not answered yet are not answered", err=True)
    typer.echo("stopped")
