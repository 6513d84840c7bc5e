"""`hplm import`: adapters of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.entries import HplmEntry
from builder.progress import progress_bars
from builder.root_choice import chosen_root
from builder.settings.device import AUTO
from cli.next_command import command_on
from cli.options import DEFAULT_HOME, DeviceOption, HomeOption, JsonOption, RootOption, print_entry
from cli.session import open_home
from cli.students import say_dropped

if TYPE_CHECKING:
    from builder.requests.base import TaskKind
    from builder.requests.hplms import Retuning

FromOption = Annotated[Path, typer.Option("--from", help="The folder that PEFT or AdapterHub saved.")]
DomainOption = Annotated[
    str | None, typer.Option(help="The domain whose tables it reads; without it 'general', or the replaced one's.")
]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        help="The names of the head's outputs in their order: a,b,c or @FILE with one a line. "
        "Not needed where the folder names them.",
        show_default="those of the folder",
    ),
]
PairOption = Annotated[bool, typer.Option("--pair", help="Its texts are pairs.")]
BaseOption = Annotated[
    Path | None,
    typer.Option(
        help="The pretrained model that the adapter was trained on; its weights are compared with the root's."
    ),
]
SameBaseOption = Annotated[
    bool, typer.Option("--same-base", help="The adapter's base is the root's own, though it is called otherwise there.")
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Make it the next version of an hPLM that exists.")]
RetuneOption = Annotated[
    bool,
    typer.Option("--retune", help="Tune it on, with its head or a new one; what lies in lower layers is left out."),
]
TrainOption = Annotated[Path | None, typer.Option(help="With --retune: labelled texts, as for 'hplm create'.")]
DevOption = Annotated[Path | None, typer.Option(help="With --retune: texts to choose the best epoch by.")]
TestOption = Annotated[Path | None, typer.Option(help="With --retune: texts to measure the result on.")]
TaskOption = Annotated[
    Literal["classification", "ner", "regression"] | None,
    typer.Option(help="With --retune: the task, where neither head nor files tell it."),
]
EpochsOption = Annotated[int, typer.Option(help="With --retune: passes over the training texts, at most.")]
RateOption = Annotated[float, typer.Option(help="With --retune: highest learning rate.")]
SeedOption = Annotated[int, typer.Option(help="With --retune: seed of everything random.")]


def register(app: typer.Typer) -> None:
    app.command("import")(import_adapter)


def import_adapter(
    id: Annotated[str, typer.Argument(metavar="ID", help="The hPLM, as tenant/name.")],
    folder: FromOption,
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    domain: DomainOption = None,
    labels: LabelsOption = None,
    pair: PairOption = False,
    base: BaseOption = None,
    same_base: SameBaseOption = False,
    replace: ReplaceOption = False,
    retune: RetuneOption = False,
    train: TrainOption = None,
    dev: DevOption = None,
    test: TestOption = None,
    task: TaskOption = None,
    epochs: EpochsOption = 8,
    learning_rate: RateOption = 5e-4,
    seed: SeedOption = 17,
    device: DeviceOption = AUTO,
    as_json: JsonOption = False,
) -> None:
    """Serve an adapter that was trained elsewhere: LoRA saved by PEFT, or AdapterHub's seq_bn and double_seq_bn.

    It is taken over exactly if all of it lies in the root's upper layers; the lower ones are a table here. What cannot
    be taken over is rejected with the reason. A running server answers it within a second.
    """
    from builder.importing.hplms import import_hplm
    from builder.requests.hplms import ImportHplm

    opened, registry = open_home(home)
    before = registry.hplm(id) if replace and registry.has_hplm(id) else None
    if root is None and before is not None:
        root = before.domain.root
    request = ImportHplm(
        id=id,
        root=chosen_root(registry, root),
        domain=domain,
        adapter=folder,
        labels=_labels(labels),
        pair=pair,
        same_base=same_base,
        replace=replace,
        retune=_retuning(
            retune, (train, dev, test), task, {"epochs": epochs, "learning_rate": learning_rate, "seed": seed}, device
        ),
    )
    with progress_bars(id) as report:
        entry = import_hplm(opened, registry, request, report, base)
    if before is not None:
        _say_all_dropped(opened, before, entry)
    described = {
        "id": entry.id,
        "version": entry.version,
        "domain": entry.domain.label,
        "root": entry.domain.root,
        "task": entry.task,
        "labels": list(entry.labels),
        **entry.metrics,
    }
    print_entry(described, as_json)


def _labels(given: str | None) -> list[str] | None:
    if given is None:
        return None
    if not given.startswith("@"):
        return _named(given.split(","), "--labels")
    path = Path(given[1:])
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"--labels: {path} is not a readable text file: {error}") from error
    return _named([line for line in lines if line.strip()], f"--labels: {path}")


def _named(labels: list[str], where: str) -> list[str]:
    names = [label.strip() for label in labels]
    if not names or not all(name.isprintable() and name for name in names):
        raise InvalidArgumentError(f"{where} holds no labels, or one that is empty or not printable")
    return names


def _say_all_dropped(home: Home, before: HplmEntry, entry: HplmEntry) -> None:
    """Say on stderr what a version lacks that the one before had: students, or a ladder."""
    from backends.wire import EARLY

    say_dropped(home, before, entry)
    if EARLY in before.levels:
        finds = command_on(home, f"hplm select {entry.id} --train FILE --held-out FILE")
        typer.echo(f"version {entry.version} has no ladder; the one before had: '{finds}' finds one", err=True)


def _retuning(
    wanted: bool,
    paths: tuple[Path | None, Path | None, Path | None],
    task: TaskKind | None,
    tune: dict[str, Any],
    device: str,
) -> Retuning | None:
    from builder.requests.hplms import Retuning

    train, dev, test = paths
    if not wanted:
        if train or dev or test:
            raise InvalidArgumentError("an import as it is reads no training files; --retune tunes on them")
        return None
    if train is None or dev is None:
        raise InvalidArgumentError("--retune needs --train and --dev")
    return Retuning(train=train, dev=dev, test=test, task=task, tune=tune, device=device)
