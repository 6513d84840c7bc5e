"""`hplm audit`: who has changed what, and when."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cli.moments import read_moment, shown_moment
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_rows
from cli.session import open_home


def register(app: typer.Typer) -> None:
    app.command()(audit)


def audit(
    since: Annotated[
        str | None, typer.Option(help="From when: a date (2026-12-31), or how long ago (7d, 12h). \\[default: all]")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only what is about one tenant and its hPLMs.")] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Who has changed what, the oldest first: versions, tokens, quotas, jobs of the manager.

    The whole log is checked, whatever is shown. If somebody has changed it by hand, the column `mark` says at which
    entries, an error says all that was found, and the exit code is 6.
    """
    _, registry = open_home(home)
    start = 0.0 if since is None else read_moment(since, "--since", sign=-1)
    log = registry.audit.read()
    shown = [entry for entry in log.entries if entry.at >= start and (tenant is None or entry.is_about(tenant))]
    rows = [{**asdict(entry), "at": shown_moment(entry.at), "mark": log.marks.get(entry.number)} for entry in shown]
    print_rows(rows, "entries", as_json)
    log.require_sound()
