"""An open home: its folders and its registry, as every command needs them."""

from __future__ import annotations

from pathlib import Path

import typer

from backends.errors import shown
from backends.home import Home
from backends.registry.registry import Registry


def open_home(path: Path, create: bool = False) -> tuple[Home, Registry]:
    home = Home(path.absolute())
    return home, Registry.open(home, create=create)


def note_unknown(registry: Registry, scope: str) -> None:
    """Say so where a tenant has no hPLM yet, or an hPLM does not exist: it may be to come, or be misspelt."""
    if "/" in scope:
        note = None if registry.has_hplm(scope) else f"hPLM {shown(scope)} does not exist yet"
    else:
        note = None if registry.hplm_page(1, tenant=scope) else f"tenant {shown(scope)} has no hPLM yet"
    if note is not None:
        typer.echo(f"note: {note}", err=True)
