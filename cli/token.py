"""`hplm token`: who may ask whose hPLMs, or use the manager."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from backends.errors import InvalidArgumentError
from backends.registry.tokens import EVERYTHING, IssuedToken, Role, TokenEntry
from cli.moments import read_long_span_s, read_moment, shown_moment
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_json, print_rows
from cli.session import note_unknown, open_home

app = typer.Typer(help="Tokens: who may ask whose hPLMs, or use the manager.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The token's ID, as 'hplm token list' shows it.")]
ExpiresOption = Annotated[
    str | None, typer.Option(help="When it ends: a date (2026-12-31), or how long it lasts (90d, 12h).")
]


@app.command()
def create(
    scope: Annotated[
        str | None,
        typer.Argument(metavar="SCOPE", help="A tenant, one hPLM as tenant/name, or '*' for every hPLM."),
    ] = None,
    role: Annotated[Role, typer.Option(help="caller asks hPLMs; the others use the manager.")] = Role.CALLER,
    expires: ExpiresOption = None,
    not_before: Annotated[
        str | None, typer.Option(help="From when it is valid: a date (2026-12-31), or in how long (12h).")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, this once: the registry keeps only its hash. Servers know it within a second."""
    if scope is None and role.has_scope:
        raise InvalidArgumentError(f"a token of the role {role} needs a SCOPE, such as acme")
    _, registry = open_home(home)
    issued = registry.tokens.create(
        EVERYTHING if scope is None else scope,
        role,
        not_before=None if not_before is None else read_moment(not_before, "--not-before"),
        expires_at=_expiry(expires),
    )
    if issued.entry.scope != EVERYTHING:
        note_unknown(registry, issued.entry.scope)
    _print_issued(issued, as_json)


@app.command()
def rotate(
    id: IdArgument,
    grace: Annotated[str, typer.Option(help="How long the old token stays valid: 7d, 1h, 0.")] = "24h",
    expires: ExpiresOption = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Make a token in place of another one, for the same scope and role; both are valid during the grace.

    Without --expires, the new one lasts as long as the old one was to.
    """
    _, registry = open_home(home)
    grace_s = read_long_span_s(grace, "--grace")
    issued = registry.tokens.rotate(id, grace_s, expires_at=_expiry(expires))
    typer.echo(f"token {id} is valid until {shown_moment(time.time() + grace_s)} at the latest", err=True)
    _print_issued(issued, as_json)


@app.command()
def revoke(id: IdArgument, home: HomeOption = DEFAULT_HOME) -> None:
    """Make a token invalid within a second, for good."""
    _, registry = open_home(home)
    entry = registry.tokens.revoke(id)
    typer.echo(f"token {entry.id} of {entry.scope} is revoked")


@app.command(name="list")
def list_tokens(
    tenant: Annotated[str | None, typer.Option(help="Only those of one tenant.")] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """All tokens, without their secrets, the oldest first; those that ended too."""
    _, registry = open_home(home)
    print_rows([_row(entry) for entry in registry.tokens.all(tenant)], "tokens", as_json)


def _expiry(text: str | None) -> float | None:
    return None if text is None else read_moment(text, "--expires")


def _print_issued(issued: IssuedToken, as_json: bool) -> None:
    if as_json:
        print_json({**_row(issued.entry), "token": issued.text})
        return
    entry = issued.entry
    until = shown_moment(entry.expires_at)
    begins = f"from {shown_moment(entry.not_before)} " if entry.not_before > entry.created_at else ""
    ends = until or "it is revoked"
    typer.echo(
        f"token {entry.id}: {entry.role} of {entry.scope}, valid {begins}until {ends}; it is shown only now", err=True
    )
    typer.echo(issued.text)


def _row(entry: TokenEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "scope": entry.scope,
        "role": entry.role.value,
        "state": entry.validity(time.time()).value,
        "created": shown_moment(entry.created_at),
        "not_before": shown_moment(entry.not_before),
        "expires": shown_moment(entry.expires_at),
        "revoked": shown_moment(entry.revoked_at),
    }
