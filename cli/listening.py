"""Who can reach a server, this machine alone or others too, and who may ask."""

from __future__ import annotations

import time
from ipaddress import ip_address
from pathlib import Path

import typer

from backends.errors import CorruptFileError, InvalidArgumentError, shown
from backends.lower.caller_check import Auth
from backends.registry.registry import Registry
from backends.registry.tokens import Role, Validity

INSECURE_VARIABLE = "HPLM_INSECURE"


def require_guarded(
    address: str,
    asks_for_tokens: bool,
    is_insecure: bool,
    others_could: str = "ask every tenant's hPLMs",
    guards: str = "--auth tokens asks",
) -> None:
    """Check that a service that others reach asks for tokens, unless it is to go without.

    Args:
        address: Where it listens.
        asks_for_tokens: Whether callers must show a token.
        is_insecure: Whether the operator has said that it is to go without.
        others_could: What anybody there could do otherwise, for the message.
        guards: The options against that, with their verb.

    Raises:
        InvalidArgumentError: It listens beyond this machine without tokens.
    """
    if not (is_loopback(address) or asks_for_tokens or is_insecure):
        raise InvalidArgumentError(
            f"on {address} others could {others_could}; {guards} them for tokens, "
            "--insecure lets them, for behind a gateway"
        )


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def auth_of_run(repository: Path, auth: Auth | None) -> Auth:
    """Return who may ask in this run: as its option says, or else the export, if there is one.

    Raises:
        CorruptFileError: The export says something else than there is.
    """
    from builder.export.in_force import effective_settings

    if auth is not None or not repository.exists():
        return auth or Auth.OFF
    exported = effective_settings(repository).get("lower auth", Auth.OFF)
    try:
        return Auth(exported)
    except ValueError as error:
        raise CorruptFileError(f"{repository} has auth {shown(exported)}; run `hplm export` again") from error


def require_code(repository: Path) -> None:
    """Check that the models' code is there, and say so where it is not of the installed release."""
    from builder.export.repository import is_of_installed_release

    if repository.is_dir() and not is_of_installed_release(repository):
        line = f"{repository} differs from the installed release; run `hplm export` again, with all your options"
        typer.echo(line, err=True)


def who_may_ask(auth: Auth, registry: Registry) -> str:
    """Say who may ask, for the start of a server."""
    if auth is Auth.OFF:
        return "auth off: each caller that reaches these ports may ask every hPLM; '--auth tokens' asks for tokens"
    now = time.time()
    callers = sum(
        entry.role is Role.CALLER and entry.validity(now) is Validity.VALID
        for entry in registry.tokens.changed(0).entries
    )
    return f"auth tokens: {callers} valid" if callers else "auth tokens: there is none; 'hplm token create' makes one"
