"""All commands, put together."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Annotated

import typer

from cli import (
    audit,
    domain,
    fleet,
    hplm,
    importing,
    loadtest,
    manager,
    place,
    profile,
    quota,
    root,
    select,
    server,
    simulate,
    students,
    token,
    traffic,
    tree,
    versions,
)
from cli.help import add_help

app = typer.Typer(
    help="Serve thousands of customised BERTs from one Triton Inference Server.",
    epilog="A first run: hplm root add → hplm domain create → hplm create → hplm export → hplm serve → hplm infer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(root.app, name="root")
app.add_typer(domain.app, name="domain")
app.add_typer(students.app, name="students")
hplm.register(app)
importing.register(app)
versions.register(app, root_app=root.app, domain_app=domain.app)
tree.register(app)
server.register(app)
profile.register(app)
select.register(app)
loadtest.register(app)
manager.register(app)
simulate.register(app)
place.register(app)
audit.register(app)
app.add_typer(token.app, name="token")
app.add_typer(quota.app, name="quota")
app.add_typer(fleet.app, name="fleet")
app.add_typer(traffic.app, name="traffic")
add_help(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hplm {version('hplm')}")
        raise typer.Exit


@app.callback()
def configure(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show what happens inside.")] = False,
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
