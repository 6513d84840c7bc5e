"""`hplm quota`: what each tenant may request, and its weight."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from backends.registry.quotas import QUOTAS, Quota
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_rows
from cli.session import note_unknown, open_home

app = typer.Typer(help="Quotas of tenants: what each may request, and its weight.", no_args_is_help=True)

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant: the first part of its hPLMs' IDs.")]


@app.command(name="set")
def set_quota(
    tenant: TenantArgument,
    weight: Annotated[
        float | None, typer.Option(help="Its part of the device while others want some; 1 without it.")
    ] = None,
    rows_per_s: Annotated[float | None, typer.Option(help="Rows a second; a second's worth may come at once.")] = None,
    bytes_per_s: Annotated[float | None, typer.Option(help="Bytes of text a second, likewise.")] = None,
    waiting_rows: Annotated[
        int | None, typer.Option(help="Rows that wait, at most; without it as hplm export --tenant-quota says.")
    ] = None,
    hplms: Annotated[int | None, typer.Option(help="Number of its hPLMs, at most.")] = None,
    upload_bytes: Annotated[
        int | None, typer.Option(help="Bytes of its uploads that the manager keeps, at most.")
    ] = None,
    running_jobs: Annotated[int | None, typer.Option(help="Its trainings that are queued or run, at most.")] = None,
    jobs_per_day: Annotated[int | None, typer.Option(help="Its trainings within a day, at most.")] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Set quotas of a tenant; what is not named stays. Servers go by them within a second."""
    of_server, of_manager = (
        (weight, rows_per_s, bytes_per_s, waiting_rows, hplms),
        (upload_bytes, running_jobs, jobs_per_day),
    )
    _, registry = open_home(home)
    given = {name: value for name, value in zip(QUOTAS, (*of_server, *of_manager), strict=True) if value is not None}
    _print_quota(tenant, registry.quotas.set(tenant, given))
    note_unknown(registry, tenant)


@app.command()
def show(
    tenant: Annotated[str | None, typer.Argument(metavar="TENANT", help="The tenant; without it all with one.")] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """The quotas of all tenants that have some, or of one."""
    _, registry = open_home(home)
    if tenant is not None:
        quotas = {tenant: registry.quotas.of(tenant)}
    else:
        quotas = {entry.tenant: entry.quota for entry in registry.quotas.all()}
    print_rows([{"tenant": name, **asdict(quota)} for name, quota in quotas.items()], "quotas", as_json)


@app.command()
def remove(
    tenant: TenantArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[QUOTA…]", help=f"Which: {', '.join(QUOTAS)}; without any, all.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Remove quotas of a tenant, within a second; rows_per_s may be written rows-per-s, as 'hplm quota set' has it."""
    _, registry = open_home(home)
    _print_quota(tenant, registry.quotas.remove(tenant, [name.replace("-", "_") for name in names or ()]))


def _print_quota(tenant: str, quota: Quota) -> None:
    typer.echo(f"{tenant}: {quota.shown or 'no quota'}")
