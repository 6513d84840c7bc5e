"""Commands about versions: which of them is live, which stay, and what goes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from backends.home import Home
from backends.registry.entries import DomainEntry, HplmEntry, Version
from backends.registry.registry import Registry
from builder.root_choice import chosen_root
from cli.exit_codes import DAMAGED
from cli.moments import shown_moment
from cli.next_command import command_on
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_json, print_rows, read_span_s
from cli.session import open_home

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")]
DomainArgument = Annotated[str, typer.Argument(metavar="NAME", help="The domain.")]
ToOption = Annotated[int | None, typer.Option("--to", help="The version to make live; by default the one before.")]
_BYTES_PER_MIB = 1 << 20


def register(app: typer.Typer, root_app: typer.Typer, domain_app: typer.Typer) -> None:
    for command in (versions, rollback, pin, unpin, delete, gc, verify):
        app.command()(command)
    domain_app.command("versions")(domain_versions)
    domain_app.command("rollback")(rollback_domain)
    domain_app.command("delete")(delete_domain)
    root_app.command("delete")(delete_root)


def versions(id: IdArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """All versions of an hPLM that are still there, oldest first."""
    _, registry = open_home(home)
    print_rows([_hplm_version(version) for version in registry.hplm_versions(id)], "versions", as_json)


def rollback(id: IdArgument, to: ToOption = None, home: HomeOption = DEFAULT_HOME) -> None:
    """Make an earlier version of an hPLM live again; a running server answers with it within a second."""
    from builder.lifecycle.rollback import rollback_hplm, unusable_students

    opened, registry = open_home(home)
    entry = rollback_hplm(opened, registry, id, to)
    typer.echo(f"{entry.id} is at version {entry.version} again, tuned on {entry.domain.label}")
    if (reason := unusable_students(opened, entry)) is not None:
        typer.echo(
            f"requests for its students are errors, because {reason}; "
            f"'{command_on(opened, f'hplm students add {id} --train FILE --dev FILE')}' adds others",
            err=True,
        )


def pin(
    id: IdArgument,
    domain_version: Annotated[
        int | None, typer.Option(help="A version of its domain; by default the one that it was tuned on.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Let updates of an hPLM stay on one version of its domain.

    What serves does not change: a version always stays on the domain version that it was tuned on. Without a pin,
    'hplm update' moves to the live version of the domain.
    """
    _, registry = open_home(home)
    entry = registry.pin_hplm(id, domain_version)
    held = entry.pinned or entry.domain
    serving = "" if held == entry.domain else f"; version {entry.version} serves on {entry.domain.label}"
    typer.echo(f"updates of {entry.id} stay on {held.label}{serving}")


def unpin(id: IdArgument, home: HomeOption = DEFAULT_HOME) -> None:
    """Let updates of an hPLM move to the live version of its domain."""
    _, registry = open_home(home)
    entry = registry.unpin_hplm(id)
    live = registry.domain_for_update(id)
    typer.echo(f"the next update of {entry.id} is tuned on {live.label}, or whichever is live then")


def delete(id: IdArgument, home: HomeOption = DEFAULT_HOME) -> None:
    """Take an hPLM out of service within a second, for good; its files stay until 'hplm gc'."""
    opened, registry = open_home(home)
    entry = registry.delete_hplm(id)
    frees = command_on(opened, "hplm gc")
    typer.echo(f"{entry.id} is no longer served, and no command brings it back; '{frees}' frees its files")


def gc(
    home: HomeOption = DEFAULT_HOME,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    keep: Annotated[int, typer.Option(help="Versions before the live one, and after it, that stay for rollbacks.")] = 1,
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            "--grace-seconds",
            help="What was live this short a time ago stays: a server may still need it. 30s, 5m; a number is seconds.",
        ),
    ] = "60s",
    unfinished: Annotated[
        str,
        typer.Option(
            "--unfinished",
            "--unfinished-hours",
            help="What an interrupted build left stays this long: the same command goes on with it. A number is hours.",
        ),
    ] = "24h",
    server_silence: Annotated[
        str | None,
        typer.Option(
            "--server-silence",
            metavar="TIME",
            help="A server that was not heard of for this long has ended, and keeps nothing. Default: as long as it "
            "answers without the registry, a day if it was not exported otherwise.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove versions that nothing needs, the remains of interrupted builds, and folders that no version knows.

    A version is needed while it is live, pinned, kept for a rollback, or under another one that is needed; or while a
    server on this home, of any host, may still answer with it: until a minute after it has read what came then.
    """
    from builder.lifecycle.garbage import GarbageSettings, collect_garbage

    opened, registry = open_home(home)
    grace_s = read_span_s(grace, "--grace")
    unfinished_s = read_span_s(unfinished, "--unfinished", bare_unit="h")
    silence_s = None if server_silence is None else read_span_s(server_silence, "--server-silence")
    settings = GarbageSettings(keep, grace_s, unfinished_s, silence_s)
    report = collect_garbage(opened, registry, settings, dry_run)
    if as_json:
        print_json(report.to_json())
        return
    if report.removed:
        print_rows([asdict(removal) for removal in report.removed], "would go" if dry_run else "gone", as_json=False)
    typer.echo(f"{'would free' if dry_run else 'freed'} {report.size_bytes / _BYTES_PER_MIB:,.1f} MiB")
    if report.served:
        seen = ", ".join(f"{server.name} (heard of {server.silent_s:.0f} s ago)" for server in report.servers)
        typer.echo(f"{len(report.served)} versions stay, because a server may still answer with them: {seen}")
    elif not report.removed:
        typer.echo(_why_nothing_goes(opened, registry))
    if report.domains_kept:
        typer.echo("a build has just begun, so all domain versions and roots stay this time")
    for name in report.in_use:
        typer.echo(f"{name} stays: a build is at work on it")


def _why_nothing_goes(home: Home, registry: Registry) -> str:
    from builder.lifecycle.garbage import GarbageSettings, collect_garbage

    left = collect_garbage(home, registry, GarbageSettings(keep=0, grace_s=0.0, unfinished_s=0.0), dry_run=True)
    if not left.removed:
        return "every version is live, pinned, or under one that is"
    return (
        f"--keep, --grace and --unfinished leave {len(left.removed)} versions or remains of builds, "
        f"{left.size_bytes / _BYTES_PER_MIB:,.1f} MiB; "
        f"'{command_on(home, 'hplm gc --dry-run --keep 0 --grace 0 --unfinished 0')}' lists them"
    )


def verify(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Read the registry, every root, table and hPLM once, and compare these with their checksums and with it.

    After a crash, say, or of a home that was copied. Servers check by themselves what they touch; this finds damage
    before a request does. What servers have learned, and what only updates read (counts of fragments, hashes of
    texts), is not looked at. The exit code is 6 if something is damaged.
    """
    from builder.lifecycle.verification import verify_home
    from builder.progress import progress_bars

    opened, registry = open_home(home)
    with progress_bars(str(home)) as report:
        found = verify_home(opened, registry, report)
    if as_json:
        print_json(asdict(found))
    elif found.damaged:
        print_rows([asdict(damage) for damage in found.damaged], "damaged", as_json=False)
    else:
        typer.echo(f"{found.num_folders} roots, tables and hPLMs are as they were written")
    if found.unfinished and not as_json:
        collect = command_on(opened, "hplm gc")
        typer.echo(
            f"interrupted builds left {', '.join(found.unfinished)}; '{collect}' removes what nobody goes on with"
        )
    if found.damaged:
        raise typer.Exit(DAMAGED)


def domain_versions(
    name: DomainArgument, home: HomeOption = DEFAULT_HOME, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """All versions of a domain that are still there, oldest first."""
    _, registry = open_home(home)
    history = registry.domain_versions(chosen_root(registry, root), name)
    print_rows([_domain_version(version) for version in history], "versions", as_json)


def rollback_domain(
    name: DomainArgument, to: ToOption = None, home: HomeOption = DEFAULT_HOME, root: RootOption = None
) -> None:
    """Make an earlier version of a domain live again; hPLMs stay on the versions that they were tuned on."""
    from builder.lifecycle.rollback import rollback_domain

    opened, registry = open_home(home)
    entry = rollback_domain(opened, registry, chosen_root(registry, root), name, to)
    moves = command_on(opened, "hplm update ID --train FILE --dev FILE")
    typer.echo(f"domain {entry.name} is at version {entry.version} again; '{moves}' moves an hPLM to it")


def delete_domain(name: DomainArgument, home: HomeOption = DEFAULT_HOME, root: RootOption = None) -> None:
    """Delete a domain that no hPLM, no other domain and no build depends on; its files stay until 'hplm gc'."""
    from builder.lifecycle.deletion import delete_domain

    opened, registry = open_home(home)
    entry = delete_domain(opened, registry, chosen_root(registry, root), name)
    frees = command_on(opened, "hplm gc")
    typer.echo(f"domain {entry.name} is deleted, and no command brings it back; '{frees}' frees its files")


def delete_root(name: Annotated[str, typer.Argument(help="The root.")], home: HomeOption = DEFAULT_HOME) -> None:
    """Delete a root without hPLMs and further domains; its files stay, and its name is taken, until 'hplm gc'."""
    from builder.lifecycle.deletion import delete_root

    opened, registry = open_home(home)
    delete_root(opened, registry, name)
    frees = command_on(opened, "hplm gc")
    typer.echo(f"root {name} is deleted, and no command brings it back; '{frees}' frees its files")


def _hplm_version(version: Version[HplmEntry]) -> dict[str, Any]:
    entry = version.entry
    metric, value = entry.main_metric
    return {
        "version": entry.version,
        "live": version.is_live,
        "domain": entry.domain.label,
        "task": entry.task,
        "metric": metric,
        "value": value,
        "published": shown_moment(version.published_at),
    }


def _domain_version(version: Version[DomainEntry]) -> dict[str, Any]:
    return {
        "version": version.entry.version,
        "live": version.is_live,
        "size_bytes": version.entry.metrics.get("size_bytes"),
        "published": shown_moment(version.published_at),
    }
