"""`hplm manager`: the management service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from backends.home import Home
from backends.lower.caller_check import Auth
from cli.listening import require_guarded
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption

if TYPE_CHECKING:
    from builder.manager.service import ManagerConfig

_MIB = 1 << 20


def register(app: typer.Typer) -> None:
    app.command()(grouped(manager))


@dataclass(frozen=True)
class CallerOptions:
    """Where the service listens, and what it lets whom send."""

    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.")] = 8080
    address: Annotated[
        str,
        typer.Option(
            help="Where to listen; 0.0.0.0 for every network, which needs --auth tokens, --token-file or --insecure."
        ),
    ] = "127.0.0.1"
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond this machine without tokens: every caller is an admin there."),
    ] = False
    max_upload_mb: Annotated[int, typer.Option(help="The largest upload, in MiB.")] = 1024
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must send; without it everybody may.")
    ] = None
    auth: Annotated[
        Auth,
        typer.Option(help="tokens: clients must send a token of hplm token, and may do what its role says."),
    ] = Auth.OFF

    @property
    def with_tokens(self) -> bool:
        """Whether callers show tokens of the registry."""
        return self.auth is Auth.TOKENS

    def require_guarded(self) -> None:
        require_guarded(
            self.address,
            asks_for_tokens=self.with_tokens or self.token_file is not None,
            is_insecure=self.insecure,
            others_could="change every hPLM",
            guards="--auth tokens or --token-file ask",
        )


@dataclass(frozen=True)
class JobOptions:
    workers: Annotated[int, typer.Option(help="Jobs that run at once.")] = 1
    processes: Annotated[
        int,
        typer.Option(
            help="Processes that each job counts and computes tables with; on Ray its tasks at once, which also run "
            "the trials of a search side by side."
        ),
    ] = 1
    niceness: Annotated[
        int, typer.Option(help="How far local jobs stand back for the server: 0 for not at all, to 19.")
    ] = 10
    executor: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Where jobs run: on this machine, or on a Ray cluster (pip install 'hplm\\[ray]')."),
    ] = "local"
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="The Ray cluster to join, HOST:PORT of its head or auto; by default one is started on this machine. "
            "Every node needs this release with Ray, the home at the same path and a registry in PostgreSQL."
        ),
    ] = None


@dataclass(frozen=True)
class RetentionOptions:
    keep_days: Annotated[float, typer.Option(help="How long finished jobs and their logs are kept.")] = 30.0
    keep_jobs: Annotated[int, typer.Option(help="How many finished jobs are kept, at most: the last ones.")] = 1000


def manager(
    *, home: HomeOption = DEFAULT_HOME, callers: CallerOptions, jobs: JobOptions, retention: RetentionOptions
) -> None:
    """Create, update and delete domains and hPLMs over HTTP, beside a running server.

    Its description is at /docs. Jobs run in processes of their own, by default at low priority. When this
    command ends, running jobs go on, and the next `hplm manager` on this home takes them up again.
    """
    callers.require_guarded()
    from builder.manager.service import serve_manager
    from builder.termination import stop_signals_interrupt

    config = _config(callers, jobs, retention)
    with stop_signals_interrupt():
        try:
            serve_manager(
                Home(home.absolute()), config, lambda url: typer.echo(f"ready: {url}  (described at {url}/docs)")
            )
        except KeyboardInterrupt:
            typer.echo("stopped")


def _config(callers: CallerOptions, jobs: JobOptions, retention: RetentionOptions) -> ManagerConfig:
    from builder.manager.housekeeping import Retention
    from builder.manager.service import ManagerConfig
    from builder.manager.supervisor import Limits

    return ManagerConfig(
        address=callers.address,
        port=callers.port,
        executor=jobs.executor,
        ray_address=jobs.ray_address,
        processes=jobs.processes,
        niceness=jobs.niceness,
        max_upload_bytes=callers.max_upload_mb * _MIB,
        token_file=callers.token_file,
        with_tokens=callers.with_tokens,
        limits=Limits(workers=jobs.workers),
        retention=Retention(retention.keep_days, retention.keep_jobs),
    )
