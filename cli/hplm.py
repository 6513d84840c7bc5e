"""Commands about hPLMs themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.registry.entries import HplmEntry
from builder.progress import progress_bars
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_entry, print_json, print_rows
from cli.session import chosen_root, open_home

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")]
TrainOption = Annotated[Path, typer.Option(help='Training texts: JSONL, {"text": …, "label": …} per line.')]
DevOption = Annotated[Path, typer.Option(help="Texts to choose the best epoch by; same form.")]
TestOption = Annotated[Path | None, typer.Option(help="Texts to measure the result on; same form.")]
DomainOption = Annotated[str, typer.Option(help="The domain that the texts belong to.")]
BottleneckOption = Annotated[int, typer.Option(help="Width of the adapters.")]
EpochsOption = Annotated[int, typer.Option(help="Passes over the training texts, at most.")]
RateOption = Annotated[float, typer.Option(help="Highest learning rate.")]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]


def register(app: typer.Typer) -> None:
    app.command()(create)
    app.command()(update)
    app.command("list")(list_hplms)
    app.command()(show)
    app.command()(delete)


def create(
    id: IdArgument,
    domain: DomainOption,
    train: TrainOption,
    dev: DevOption,
    test: TestOption = None,
    task: Annotated[str, typer.Option(help="What the hPLM does.")] = "classification",
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    bottleneck: BottleneckOption = 48,
    epochs: EpochsOption = 8,
    learning_rate: RateOption = 2e-3,
    seed: SeedOption = 17,
    as_json: JsonOption = False,
) -> None:
    """Tune an hPLM's adapters and head; a running server answers it within a second of the end."""
    from builder.construct.hplms import create_hplm

    _build(
        create_hplm, id, domain, train, dev, test, task, home, root, (bottleneck, epochs, learning_rate, seed), as_json
    )


def update(
    id: IdArgument,
    train: TrainOption,
    dev: DevOption,
    test: TestOption = None,
    domain: Annotated[str | None, typer.Option(help="Another domain than so far.")] = None,
    home: HomeOption = DEFAULT_HOME,
    bottleneck: BottleneckOption = 48,
    epochs: EpochsOption = 8,
    learning_rate: RateOption = 2e-3,
    seed: SeedOption = 17,
    as_json: JsonOption = False,
) -> None:
    """Tune the next version of an hPLM, anew and on these files alone; the old one serves until that is done."""
    from builder.construct.hplms import update_hplm

    _, registry = open_home(home)
    entry = registry.hplm(id)
    settings = (bottleneck, epochs, learning_rate, seed)
    chosen = domain or entry.domain.name
    _build(update_hplm, id, chosen, train, dev, test, entry.task, home, entry.domain.root, settings, as_json)


def list_hplms(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """The live version of every hPLM."""
    _, registry = open_home(home)
    rows = [
        {
            "id": entry.id,
            "version": entry.version,
            "domain": entry.domain.label,
            "task": entry.task,
            "dev_accuracy": entry.metrics["dev_accuracy"],
        }
        for entry in registry.hplms()
    ]
    print_rows(rows, "hPLMs", as_json)


def show(id: IdArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """One hPLM: labels, domain, metrics."""
    _, registry = open_home(home)
    print_entry(_described(registry.hplm(id)), as_json)


def delete(id: IdArgument, home: HomeOption = DEFAULT_HOME) -> None:
    """Take an hPLM out of service; its versions stay on disk."""
    _, registry = open_home(home)
    entry = registry.delete_hplm(id)
    typer.echo(f"{entry.id} is no longer served; version {entry.version} stays in the bank")


def _build(
    build: Callable[..., HplmEntry],
    id: str,
    domain: str,
    train: Path,
    dev: Path,
    test: Path | None,
    task: str,
    home: Path,
    root: str | None,
    settings: tuple[int, int, float, int],
    as_json: bool,
) -> None:
    from builder.construct.hplms import HplmRequest
    from builder.construct.tune import TuneSettings

    bottleneck, epochs, learning_rate, seed = settings
    opened, registry = open_home(home)
    request = HplmRequest(
        id=id,
        root=chosen_root(registry, root),
        domain=domain,
        train=train,
        dev=dev,
        test=test,
        task=task,
        tune=TuneSettings(bottleneck=bottleneck, epochs=epochs, learning_rate=learning_rate, seed=seed),
    )
    with progress_bars(id) as report:
        entry = build(opened, registry, request, report)
    if as_json:
        print_json(_described(entry))
    else:
        print_entry(_described(entry), as_json=False)


def _described(entry: HplmEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "version": entry.version,
        "domain": entry.domain.label,
        "root": entry.domain.root,
        "task": entry.task,
        "labels": list(entry.labels),
        **entry.metrics,
    }
