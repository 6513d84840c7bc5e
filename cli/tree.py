"""`hplm tree`: roots, the versions of their domains, and the hPLMs on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from builder.lifecycle.tree import version_trees
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_json
from cli.session import open_home

_SHOWN_HPLMS = 8
_BYTES_PER_MIB = 1 << 20


def register(app: typer.Typer) -> None:
    app.command()(tree)


def tree(
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Every hPLM, however many there are.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw what there is: roots, the versions of their domains under their parents', and the hPLMs on each."""
    _, registry = open_home(home)
    roots = registry.roots() if root is None else [registry.root(root)]
    branches = version_trees(registry, [entry.name for entry in roots])
    if as_json:
        print_json(branches)
        return
    for branch in branches:
        Console().print(_drawn_root(branch, None if everything else _SHOWN_HPLMS))


def _drawn_root(branch: Mapping[str, Any], limit: int | None) -> Tree:
    drawn = Tree(Text(f"{branch['root']}: {_counted(_num_hplms(branch), 'hPLM')}", style="bold"))
    for domain in branch["domains"]:
        _draw_domain(drawn, domain, limit)
    return drawn


def _draw_domain(above: Tree, domain: Mapping[str, Any], limit: int | None) -> None:
    facts = [] if domain["live"] else ["not live"]
    if domain["size_bytes"] is not None:
        facts.append(f"{domain['size_bytes'] / _BYTES_PER_MIB:,.1f} MiB")
    if hplms := domain["hplms"]:
        facts.append(_counted(len(hplms), "hPLM"))
    branch = above.add(_line(domain["domain"], facts, "cyan" if domain["live"] else "dim"))
    shown = _shown(hplms, domain["newest_hplm"], limit)
    for hplm in shown:
        pinned = [f"pinned to {hplm['pinned']}"] if hplm["pinned"] else []
        newest = ["newest"] if len(shown) < len(hplms) and hplm["id"] == domain["newest_hplm"] else []
        branch.add(_line(f"{hplm['id']}@{hplm['version']}", [hplm["task"], *pinned, *newest], "green"))
    if len(shown) < len(hplms):
        branch.add(Text(f"and {len(hplms) - len(shown):,} more; --all shows them", style="dim"))
    for child in domain["domains"]:
        _draw_domain(branch, child, limit)


def _shown(hplms: Sequence[Mapping[str, Any]], newest: str | None, limit: int | None) -> Sequence[Mapping[str, Any]]:
    """Take the first hPLMs, and the newest in place of the last of these: it is what one has just made."""
    if limit is None or len(hplms) <= limit:
        return hplms
    first, others = hplms[: limit - 1], hplms[limit - 1 :]
    return [*first, next((hplm for hplm in others if hplm["id"] == newest), others[0])]


def _line(name: str, facts: Sequence[str], style: str) -> Text:
    return Text.assemble((name, style), "  " if facts else "", "  ".join(facts))


def _num_hplms(branch: Mapping[str, Any]) -> int:
    return len(branch.get("hplms", ())) + sum(_num_hplms(domain) for domain in branch["domains"])


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
