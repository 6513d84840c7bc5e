"""Commands about several servers behind a gateway."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backends.errors import FileError, InvalidArgumentError, UnavailableError
from backends.held_roots import in_words
from backends.home import Home
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_json, print_rows
from cli.ports import Listener, require_health_port
from cli.serving_options import ListenOptions, LogOptions, RestartOptions, RunOptions, TlsOptions, opened_for_callers
from cli.session import open_home

if TYPE_CHECKING:
    from builder.fleet.control import Verb
    from builder.fleet.fleet_placement import FleetPlacement
    from builder.fleet.settings import FleetSettings
    from builder.placement.planner.plan import Plan

app = typer.Typer(help="Several servers behind a gateway, which keeps each tenant with one of them.")
_BALANCE = "Open requests of a server over the mean of all, in percent, beyond which others take some; 0: no bound."
BalanceOption = Annotated[int, typer.Option(help=_BALANCE)]
HttpOption = Annotated[int, typer.Option(help="The gateway's HTTP port; 0 takes a free one.")]
GrpcOption = Annotated[int, typer.Option(help="The gateway's gRPC port; 0 takes a free one.")]


@app.command()
@grouped
def serve(
    *,
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
    balance: BalanceOption = 125,
    own_cores: Annotated[
        bool, typer.Option("--own-cores/--shared-cores", help="Each server computes on cores of its own, or on all.")
    ] = True,
    gpus: Annotated[
        str | None, typer.Option(help="What each server sees as its GPUs, one of these for each: 0,1 for two servers.")
    ] = None,
    listen: ListenOptions,
    run: RunOptions,
    restarts: RestartOptions,
    log: LogOptions,
    tls: TlsOptions,
) -> None:
    """Start servers on the home's repository, and Envoy in front of them; stay until Ctrl-C."""
    from builder.fleet.settings import HEALTH_ADDRESS, FleetSettings

    of_gateway = {"--http": Listener(listen.address, http), "--grpc": Listener(listen.address, grpc)}
    require_health_port(Listener(HEALTH_ADDRESS, health_port), of_gateway)
    settings = FleetSettings(
        num_servers=servers,
        address=listen.address,
        http=http or None,
        grpc=grpc or None,
        health_port=health_port or None,
        first_port=first_port or None,
        balance=balance,
        tls=tls.tls,
        drain_s=restarts.drain_s,
        ready_timeout_s=restarts.ready_timeout_s,
        max_restarts=restarts.max_restarts,
        max_log_bytes=log.max_bytes,
        log_verbose=log.log_verbose,
        of_run=run.settings,
        gpus=tuple(part.strip() for part in gpus.split(",")) if gpus else (),
        own_cores=own_cores,
    )
    opened, callers = opened_for_callers(home, listen, run)
    if settings.gpus:
        _require_on_gpu(opened)
    _serve_until_stopped(opened, settings, callers)


def _require_on_gpu(home: Home) -> None:
    """Reject GPUs for an export whose upper layers compute on the CPU."""
    from builder.export.in_force import effective_settings

    if effective_settings(home.repository).get("upper device") == "cpu":
        makes = "'hplm export --device gpu' makes one for GPUs"
        raise InvalidArgumentError(f"--gpus: the export computes on the CPU; {makes}")


@app.command()
def status(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show the servers of the fleet that runs on the home, and what its gateway has sent to each."""
    from builder.fleet.control import OF_GATEWAY, server_rows
    from builder.fleet.fleet_folder import FleetFolder

    folder = FleetFolder(Home(home))
    state = folder.running()
    rows = server_rows(state)
    is_unfinished = folder.journal.exists()
    placed, in_force = _in_force(folder.placement)
    if as_json:
        gateway = {name: value for name, value in vars(state.gateway).items() if name != "admin"}
        said = {"pid": state.pid, "health": state.health, "gateway": gateway, "servers": rows}
        print_json({**said, "placement": placed, "is_apply_unfinished": is_unfinished})
        return
    shown = ["server", "state", "in_gateway", "requests", "open", "restarts", "pid", "reason"]
    if any(row["roots"] is not None for row in rows):
        shown.insert(-1, "roots")
    unknown = dict.fromkeys((name for name in OF_GATEWAY if rows and rows[0][name] is None), "unknown")
    rows = [{**row, **unknown, "roots": in_words(row["roots"])} for row in rows]
    print_rows([{name: row[name] for name in shown} for row in rows], "servers", as_json=False)
    if unknown:
        typer.echo("the gateway does not answer here, so what it has sent to whom is unknown", err=True)
    if is_unfinished:
        typer.echo("an apply has begun and not ended: if none is at work, hplm fleet apply goes on with it", err=True)
    typer.echo(in_force, err=True)
    typer.echo(f"gateway {state.gateway.state}: {state.gateway.urls}  health {state.health}/readyz", err=True)


def _in_force(applied: Path) -> tuple[dict[str, list[str] | None] | None, str]:
    """Return the roots of each server by the placement that was applied last, and a line about it."""
    from builder.fleet.fleet_placement import FleetPlacement

    try:
        placed = FleetPlacement.read(applied)
    except FileError as error:
        return None, f"the placement that was applied last cannot be read: {error}"
    return placed.held, str(placed)


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
    from builder.fleet.control import order, require_here, require_orders
    from builder.fleet.fleet_folder import FleetFolder
    from builder.fleet.member_state import MemberState

    state = FleetFolder(Home(home)).running()
    require_here(state)
    named = list(dict.fromkeys(servers))
    verb: Verb = "restart" if restart else "drain"
    require_orders(state, verb, named, force=force)
    stopped = {each.server for each in state.servers if each.state == MemberState.STOPPED}
    for server in named:
        is_stopped = server in stopped
        if is_stopped and not restart:
            typer.echo(f"{server}: was stopped already")
            continue
        typer.echo(f"{server}: {'starting' if is_stopped else 'draining'}", err=True)
        undone = order(state, verb, server, force=force)
        if undone:
            raise UnavailableError(f"{server}: {'; '.join(undone)}")
        again = "ready" if is_stopped else "ready again"
        typer.echo(f"{server}: {again if restart else 'drained and stopped'}")


@app.command()
def apply(
    home: HomeOption = DEFAULT_HOME,
    placement: Annotated[
        Path | None,
        typer.Option(
            help="From now on each server holds what this plan of hplm place says: HOME/profiles/placement.json."
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="From now on each server holds all roots, as without a placement.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Which host of the placement this machine is, where it has several.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Restart also servers that are as wanted.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Restart even the last server that is ready.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the running fleet to what is exported, installed and placed by now, one server after the other.

    Each server that runs with something else is drained and started again while the others answer. Where that was
    interrupted, the same command goes on. A server that does not come back ends it; the others go on as they were.
    """
    from builder.fleet.apply import FleetApply
    from builder.fleet.fleet_folder import FleetFolder
    from builder.fleet.fleet_placement import FleetPlacement

    opened = Home(home.absolute())
    wanted = None
    if placement is not None and everywhere:
        raise InvalidArgumentError("--placement and --everywhere exclude each other")
    if placement is not None:
        wanted = _placement_of(opened, placement, host)
    elif everywhere:
        wanted = FleetPlacement()
    elif host is not None:
        raise InvalidArgumentError("--host goes with --placement")
    work = FleetApply(opened, lambda line: typer.echo(line, err=True))
    if dry_run:
        print_rows([step.row() for step in work.steps(wanted, restart=restart)], "servers", as_json=as_json)
        return
    with work.begun(wanted, restart=restart):
        restarted = work.run(force=force)
    folder = FleetFolder(opened)
    num_servers = len(folder.running().servers)
    placed, in_force = _in_force(folder.placement)
    if as_json:
        print_json({"restarted": restarted, "servers": num_servers, "placement": placed})
        return
    nothing = "nothing to do" if wanted is None else "nothing to restart"
    typer.echo(f"restarted {len(restarted)} of {num_servers} servers" if restarted else nothing)
    typer.echo(in_force, err=True)


def _placement_of(home: Home, path: Path, host: str | None) -> FleetPlacement:
    """Read a plan, and deal its groups to the servers that run."""
    from builder.fleet.fleet_folder import FleetFolder
    from builder.fleet.fleet_placement import FleetPlacement, levels_apart
    from builder.placement.planner.plan_file import read_plan

    folder = FleetFolder(home)
    servers = [each.server for each in folder.running().servers]
    plan = read_plan(path)
    _, registry = open_home(home.path)
    fingerprints = {entry.name: entry.fingerprint for entry in registry.roots()}
    registry.close()
    plan.check_home(fingerprints)
    if (reason := _out_of_order(folder.placement, plan)) is not None:
        typer.echo(reason, err=True)
    for line in levels_apart(plan):
        typer.echo(line, err=True)
    return FleetPlacement.of_plan(plan, servers, list(fingerprints), host)


def _out_of_order(applied: Path, plan: Plan) -> str | None:
    """Say why a plan's steps may interrupt roots; what was applied last and cannot be read is replaced all the same."""
    from builder.fleet.fleet_placement import FleetPlacement

    try:
        return FleetPlacement.read(applied).why_out_of_order(plan)
    except FileError as error:
        return f"the plan's steps may interrupt roots, for what was applied last cannot be read: {error}"


@app.command()
@grouped
def config(
    *,
    hosts: Annotated[
        Path,
        typer.Option(help="The servers, in TOML: [[server]] with name, address and, where they differ, ports."),
    ],
    address: Annotated[str, typer.Option(help="Where the gateway listens.")] = "0.0.0.0",
    http: Annotated[int, typer.Option(help="The gateway's HTTP port.")] = 8000,
    grpc: Annotated[int, typer.Option(help="The gateway's gRPC port.")] = 8001,
    balance: BalanceOption = 125,
    tls: TlsOptions,
    out: Annotated[Path | None, typer.Option(help="Write it there; without it, on the screen.")] = None,
) -> None:
    """Print Envoy's configuration for servers on other machines: hplm serve on each, with --health-address."""
    from builder.fleet.gateway_config import GatewaySettings, gateway_config
    from builder.fleet.hosts import read_hosts

    settings = GatewaySettings(address=address, http=http, grpc=grpc, balance=balance, tls=tls.tls)
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
    from builder.fleet.fleet_folder import FleetFolder
    from builder.serving.watchdog_log import with_time
    from builder.termination import stop_requests

    in_force = effective_settings(home.repository)
    changes = changes_of_run(home.repository, settings.of_run, cpu_flags())

    def report(line: str) -> None:
        with suppress(OSError):  # a screen that is gone
            typer.echo(with_time(line), err=True)

    with stop_requests() as stop, Fleet(home, settings, stop, report) as fleet:
        typer.echo(f"starting {settings.num_servers} servers; their logs are in {FleetFolder(home).path}", err=True)
        try:
            if fleet.start():
                typer.echo(f"settings: {in_one_line(in_force, changes)}", err=True)
                typer.echo(f"ready: {fleet.front.urls}  health {fleet.health_url}/readyz")
                typer.echo(callers, err=True)
                fleet.stay()
        except KeyboardInterrupt:
            typer.echo("stopping at once; requests that were not answered yet are not answered", err=True)
    typer.echo("stopped")
