"""Commands about roots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backends.home import Home
from backends.root.store import RootFolder
from builder.progress import progress_bars
from cli.options import DEFAULT_HOME, CorpusOption, HomeOption, JsonOption, print_entry, print_rows
from cli.session import open_home

app = typer.Typer(help="Pretrained models that hPLMs are made of.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What to call the root.")],
    source: Annotated[
        str, typer.Option("--from", help="A Hugging Face model: its folder, or a pip package that carries one.")
    ],
    lower: Annotated[int, typer.Option(help="How many layers become the lookup table; the rest stays shared.")],
    corpus: CorpusOption,
    home: HomeOption = DEFAULT_HOME,
    steps: Annotated[int, typer.Option(help="Distillation steps.")] = 600,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate of the distillation.")] = 1e-3,
    train_upper: Annotated[bool, typer.Option(help="Let the upper layers learn too.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Longest text in tokens; longer ones are cut.")] = 128,
    max_fragments: Annotated[int, typer.Option(help="Tri-grams in the root's own table, at most.")] = 200_000,
    max_bigrams: Annotated[int, typer.Option(help="Bi-grams in the root's own table, at most.")] = 100_000,
    distilled: Annotated[
        Path | None, typer.Option(help="Take distilled weights from this file; train nothing.")
    ] = None,
) -> None:
    """Convert a BERT model into a root: distil its lower layers into fragments, and build the general table.

    Takes minutes to hours; when it is interrupted, the same command goes on where it was.
    """
    from builder.construct.distil import DistilSettings
    from builder.construct.plots import PlotSettings
    from builder.construct.roots import RootRequest, add_root

    request = RootRequest(
        name=name,
        source=source,
        num_lower_layers=lower,
        corpus=tuple(corpus),
        max_tokens=max_tokens,
        distilled=distilled,
        distil=DistilSettings(steps=steps, learning_rate=learning_rate, train_upper=train_upper),
        plot=PlotSettings(max_fragments=max_fragments, max_bigrams=max_bigrams),
    )
    opened, registry = open_home(home, create=True)
    with progress_bars(name) as report:
        add_root(opened, registry, request, report)
    print_entry(_described(opened, name), as_json=False)


@app.command("list")
def list_roots(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """All roots."""
    opened, registry = open_home(home)
    print_rows([_described(opened, entry.name) for entry in registry.roots()], "roots", as_json)


@app.command()
def show(name: str, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """One root: sizes, where it comes from, and how faithful it is to its model."""
    opened, registry = open_home(home)
    entry = _described(opened, registry.root(name).name)
    print_entry({**entry, "geometry": RootFolder(opened.root(name)).geometry.to_json()}, as_json)


def _described(home: Home, name: str) -> dict[str, Any]:
    manifest = RootFolder(home.root(name)).manifest
    geometry = manifest.geometry
    return {
        "name": name,
        "fingerprint": manifest.fingerprint,
        "layers": f"{geometry.num_lower_layers} + {geometry.num_upper_layers}",
        "hidden_size": geometry.hidden_size,
        "source": manifest.origin["source"],
        "fidelity": manifest.fidelity,
    }
