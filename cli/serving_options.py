"""Options of commands that start servers, in groups."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.scheduling.settings import POLICY_VARIABLE, PolicyName
from backends.storage import require_writable
from cli.export import export
from cli.listening import INSECURE_VARIABLE, auth_of_run, require_code, require_guarded, who_may_ask
from cli.options import RecordTrafficOption, read_span_s
from cli.session import open_home

if TYPE_CHECKING:
    from builder.export.of_run import SettingsOfRun
    from builder.serving.tls import Tls


@dataclass(frozen=True)
class ListenOptions:
    address: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 for every network, which needs --auth tokens or --insecure.")
    ] = "127.0.0.1"
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar=INSECURE_VARIABLE,
            help="Listen beyond this machine without tokens: every caller there may ask every tenant's hPLMs.",
        ),
    ] = False


@dataclass(frozen=True)
class RunOptions:
    policy: Annotated[
        PolicyName | None,
        typer.Option(envvar=POLICY_VARIABLE, help="For this run; without it the export's, see hplm export."),
    ] = None
    auth: Annotated[
        Auth | None,
        typer.Option(
            envvar=AUTH_VARIABLE, help="For this run: off, or tokens of hplm token; without it the export's, off."
        ),
    ] = None
    record_traffic: RecordTrafficOption = None

    @property
    def settings(self) -> SettingsOfRun:
        from builder.export.of_run import SettingsOfRun

        return SettingsOfRun(self.policy and self.policy.value, self.auth and self.auth.value, self.record_traffic)


@dataclass(frozen=True)
class RestartOptions:
    drain: Annotated[
        str,
        typer.Option(help="How long a server that is to stop may finish what it accepted: 30s, 2m; 0 for not at all."),
    ] = "30s"
    ready_timeout: Annotated[
        str, typer.Option(help="How long a server may take until it is ready, before that counts as failed: 10m, 90s.")
    ] = "10m"
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="Restarts of a server that died or hangs, and of a fleet's gateway, within ten minutes; 0 ends with "
            "the first.",
        ),
    ] = 5

    @property
    def drain_s(self) -> float:
        return read_span_s(self.drain, "--drain")

    @property
    def ready_timeout_s(self) -> float:
        if not (limit_s := read_span_s(self.ready_timeout, "--ready-timeout")):
            raise InvalidArgumentError("--ready-timeout: 0 leaves a server no time to load; give one such as 10m")
        return limit_s


@dataclass(frozen=True)
class LogOptions:
    log_mb: Annotated[
        int,
        typer.Option(
            min=1, help="Size of a server's log, at most; then it moves to its name with .1, in place of the last one."
        ),
    ] = 64
    log_verbose: Annotated[int, typer.Option(help="Triton's own verbosity.")] = 0

    @property
    def max_bytes(self) -> int:
        return self.log_mb << 20


@dataclass(frozen=True)
class TlsOptions:
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Encrypt the ports with this certificate (PEM); hplm serve encrypts gRPC alone, and its HTTP then "
            "stays on this machine."
        ),
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Answer only clients with a certificate that one of these has signed (PEM).")
    ] = None

    @property
    def tls(self) -> Tls | None:
        from builder.serving.tls import tls_of

        return tls_of(self.tls_cert, self.tls_key, self.tls_client_ca)


def opened_for_callers(home: Path, listen: ListenOptions, run: RunOptions) -> tuple[Home, str]:
    """Open a home that is to be served, exported where it never was, and say who may ask.

    Raises:
        InvalidArgumentError: Others reach it, and neither are they asked for tokens, nor is it to go without.
    """
    opened, registry = open_home(home)
    with closing(registry):
        auth = auth_of_run(opened.repository, run.auth)
        require_guarded(listen.address, asks_for_tokens=auth is Auth.TOKENS, is_insecure=listen.insecure)
        if not opened.repository.exists():
            require_writable(opened.repository, "or export it where it can be written")
            export(home)
        require_code(opened.repository)
        return opened, who_may_ask(auth, registry)
