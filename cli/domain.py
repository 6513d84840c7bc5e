"""Commands about domains."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backends.registry.entries import DomainEntry
from builder.progress import progress_bars
from cli.options import (
    DEFAULT_HOME,
    CorpusOption,
    HomeOption,
    JsonOption,
    MaxFragmentsOption,
    RootOption,
    ThetaOption,
    print_entry,
    print_rows,
)
from cli.session import chosen_root, open_home

app = typer.Typer(help="Domains: tables of the fragments that a field of text uses.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the domain.")],
    corpus: CorpusOption,
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    parent: Annotated[str, typer.Option(help="The domain that answers what this one does not hold.")] = "general",
    theta: ThetaOption = 1.0,
    max_fragments: MaxFragmentsOption = 200_000,
) -> None:
    """Build a domain's table from a corpus; when it is interrupted, the same command goes on where it was."""
    from builder.construct.domains import DomainRequest, create_domain
    from builder.construct.plots import PlotSettings

    opened, registry = open_home(home)
    plot = PlotSettings(theta=theta, max_fragments=max_fragments)
    request = DomainRequest(name, chosen_root(registry, root), tuple(corpus), parent, plot)
    with progress_bars(name) as report:
        entry = create_domain(opened, registry, request, report)
    print_entry(_described(entry), as_json=False)


@app.command("list")
def list_domains(home: HomeOption = DEFAULT_HOME, root: RootOption = None, as_json: JsonOption = False) -> None:
    """The live version of every domain."""
    _, registry = open_home(home)
    print_rows([_described(entry) for entry in registry.domains(root)], "domains", as_json)


@app.command()
def show(name: str, home: HomeOption = DEFAULT_HOME, root: RootOption = None, as_json: JsonOption = False) -> None:
    """One domain: its fragments, bytes, and the share of its corpus that they cover."""
    _, registry = open_home(home)
    entry = registry.domain(chosen_root(registry, root), name)
    print_entry({**_described(entry), "folders": list(entry.folders)}, as_json)


def _described(entry: DomainEntry) -> dict[str, Any]:
    return {"name": entry.name, "version": entry.version, "root": entry.root, **entry.metrics}
