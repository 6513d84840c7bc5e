"""Commands about hPLMs themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError
from backends.registry.entries import HplmEntry
from builder.root_choice import chosen_root
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_entry, print_json, print_rows
from cli.progress import resumable_progress
from cli.session import open_home

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")]
TrainOption = Annotated[
    Path,
    typer.Option(
        help='What to learn from. JSONL, {"text": …, "label": …} per line, with "text_pair" for pairs of texts and '
        "numbers as labels for regression; or, for NER, CoNLL: token<TAB>tag per line, a blank line between sentences."
    ),
]
DevOption = Annotated[Path, typer.Option(help="Examples to choose the best epoch by; same form.")]
TestOption = Annotated[Path | None, typer.Option(help="Examples to measure the result on; same form.")]
DomainOption = Annotated[str, typer.Option(help="The domain of the texts; NAME@VERSION pins the hPLM to it.")]
TaskOption = Annotated[
    Literal["classification", "ner", "regression"] | None,
    typer.Option(help="What the hPLM does.", show_default="ner for CoNLL files, otherwise classification"),
]
SearchOption = Annotated[
    int,
    typer.Option(help="Try this many settings (learning rate, adapters) and keep the best; the first are the given."),
]
TeacherOption = Annotated[
    Literal["dedicated"] | None,
    typer.Option(
        help="dedicated: first fine-tune the whole pretrained model on the task, then learn from its answers to the "
        "examples and to five rewritten texts of each, or those of --unlabelled. The best quality there is; it takes "
        "ten times as long, and two --epochs do."
    ),
]
UnlabelledOption = Annotated[
    Path | None,
    typer.Option(
        help="Texts like those of the task, one per line (of pairs, with a TAB between the halves), that the dedicated "
        "teacher answers too. Three for each example are used at most; they teach more than rewritten ones."
    ),
]
# Whoever gives none of these gets the defaults of the tuning, and in an update what the live version was tuned with.
RankOption = Annotated[
    int | None,
    typer.Option(help="Rank of the adapters, LoRA on every linear layer. \\[default: 16]", show_default=False),
]
BottleneckOption = Annotated[
    int | None, typer.Option(help="Bottleneck adapters of this width instead of LoRA.", show_default=False)
]
EntranceOption = Annotated[
    int | None,
    typer.Option(
        help="Width of an adapter of the hidden rows themselves, for tasks with words that the root knows little of.",
        show_default=False,
    ),
]
EpochsOption = Annotated[int | None, typer.Option(help="Passes over the examples, at most.", show_default=False)]
RateOption = Annotated[float | None, typer.Option(help="Highest learning rate.", show_default=False)]
PatienceOption = Annotated[
    int | None, typer.Option(help="Epochs without a better dev result that end it.", show_default=False)
]
WeightsOption = Annotated[
    Literal["none", "balanced"] | None,
    typer.Option(help="balanced: rare classes weigh as much as frequent ones.", show_default=False),
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of everything random.", show_default=False)]
SettingsOption = Annotated[
    Path | None,
    typer.Option(
        help='A JSON file with any settings of the tuning: {"dropout": 0.1, "recipe": {"norm_sites": ["output"]}, …}.'
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(create)
    app.command()(update)
    app.command("list")(list_hplms)
    app.command()(show)


def create(
    id: IdArgument,
    domain: DomainOption,
    train: TrainOption,
    dev: DevOption,
    test: TestOption = None,
    task: TaskOption = None,
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    search: SearchOption = 1,
    teacher: TeacherOption = None,
    unlabelled: UnlabelledOption = None,
    rank: RankOption = None,
    bottleneck: BottleneckOption = None,
    entrance: EntranceOption = None,
    epochs: EpochsOption = None,
    learning_rate: RateOption = None,
    patience: PatienceOption = None,
    class_weights: WeightsOption = None,
    seed: SeedOption = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune an hPLM's adapters and head; a running server answers it within a second of the end.

    Interrupted, it goes on at its last epoch when the same command is given again.
    """
    from builder.construct.hplm.hplms import create_hplm
    from builder.requests.hplms import CreateHplm

    opened, registry = open_home(home)
    request = CreateHplm(
        id=id,
        root=chosen_root(registry, root),
        domain=domain,
        train=train,
        dev=dev,
        test=test,
        task=task,
        tune=_changes(settings, rank, bottleneck, entrance, epochs, learning_rate, patience, class_weights, seed),
        search=search,
        teacher=teacher,
        unlabelled=unlabelled,
    )
    with resumable_progress(id) as report:
        entry = create_hplm(opened, registry, request, report)
    _print_built(entry, as_json)


def update(
    id: IdArgument,
    train: TrainOption,
    dev: DevOption,
    test: TestOption = None,
    domain: Annotated[str | None, typer.Option(help="Another domain; NAME@VERSION pins the hPLM to it.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin with new adapters, not with the live version's.")
    ] = False,
    labels_may_change: Annotated[
        bool, typer.Option("--labels-may-change", help="Accept other labels; those that stay keep what they know.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Publish it also where it does worse on the dev file than the live version.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    search: SearchOption = 1,
    teacher: TeacherOption = None,
    unlabelled: UnlabelledOption = None,
    rank: RankOption = None,
    bottleneck: BottleneckOption = None,
    entrance: EntranceOption = None,
    epochs: EpochsOption = None,
    learning_rate: RateOption = None,
    patience: PatienceOption = None,
    class_weights: WeightsOption = None,
    seed: SeedOption = None,
    settings: SettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune the next version of an hPLM, from the live one on; the old one serves until that is done.

    It moves to the live version of its domain, unless it is pinned. Other adapters than the live version's begin anew.
    """
    from builder.construct.hplm.hplms import update_hplm
    from builder.requests.hplms import UpdateHplm

    opened, registry = open_home(home)
    request = UpdateHplm(
        id=id,
        train=train,
        dev=dev,
        test=test,
        domain=domain,
        tune=_changes(settings, rank, bottleneck, entrance, epochs, learning_rate, patience, class_weights, seed),
        search=search,
        teacher=teacher,
        unlabelled=unlabelled,
        from_scratch=from_scratch,
        labels_may_change=labels_may_change,
        force=force,
    )
    with resumable_progress(id) as report:
        entry = update_hplm(opened, registry, request, report)
    _print_built(entry, as_json)


def list_hplms(
    home: HomeOption = DEFAULT_HOME,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only those on this domain: NAME, or NAME@VERSION.")] = None,
    task: Annotated[str | None, typer.Option(help="Only those of this task.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The live version of every hPLM."""
    _, registry = open_home(home)
    entries = [
        entry
        for entry in registry.hplms()
        if tenant in (None, entry.id.partition("/")[0])
        and domain in (None, entry.domain.name, entry.domain.label)
        and task in (None, entry.task)
    ]
    print_rows([_listed(entry) for entry in entries], "hPLMs", as_json)


def show(id: IdArgument, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """One hPLM: labels, domain, metrics."""
    _, registry = open_home(home)
    print_entry(_described(registry.hplm(id)), as_json)


def _changes(
    settings: Path | None,
    rank: int | None,
    bottleneck: int | None,
    entrance: int | None,
    epochs: int | None,
    learning_rate: float | None,
    patience: int | None,
    class_weights: str | None,
    seed: int | None,
) -> dict[str, Any]:
    """What is to be other than it was: the file, and above it the options."""
    from backends.adapters.adapter_set import LORA_MODULES, SITES

    given = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "patience": patience,
        "class_weights": class_weights,
        "seed": seed,
    }
    changes = {**_read_settings(settings), **{name: value for name, value in given.items() if value is not None}}
    if rank is not None and bottleneck is not None:
        raise InvalidArgumentError("--rank and --bottleneck exclude each other")
    recipe = dict(changes.get("recipe", {}))
    if rank is not None:
        recipe |= {"bottleneck_sites": [], "lora_modules": list(LORA_MODULES), "rank": rank}
    if bottleneck is not None:
        recipe |= {"bottleneck_sites": list(SITES), "lora_modules": [], "width": bottleneck}
    if entrance is not None:
        recipe["entrance_width"] = entrance
    return {**changes, "recipe": recipe} if recipe else changes


def _read_settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("recipe", {}), dict):
        raise InvalidArgumentError(f"{path} holds no object with settings")
    return content


def _print_built(entry: HplmEntry, as_json: bool) -> None:
    described = _described(entry)
    if as_json:
        print_json(described)
        return
    trials = described.pop("search", [])
    print_entry(described, as_json=False)
    if trials:
        print_rows(trials, "trials", as_json=False)


def _described(entry: HplmEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "version": entry.version,
        "domain": entry.domain.label,
        "root": entry.domain.root,
        "task": entry.task,
        "pair": entry.pair,
        "labels": list(entry.labels),
        **entry.metrics,
    }


def _listed(entry: HplmEntry) -> dict[str, Any]:
    metric, value = entry.main_metric
    return {
        "id": entry.id,
        "version": entry.version,
        "domain": entry.domain.label,
        "task": entry.task,
        "metric": metric,
        "value": value,
    }
