"""Commands about hPLMs themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from backends.errors import FileError, HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.root.int8_file import read_fidelity
from builder.root_choice import chosen_root
from cli.ladder_options import LadderOptions
from cli.map_options import TrialsRayOption, trial_map
from cli.next_command import command_on
from cli.option_groups import grouped
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_entry, print_json, print_rows
from cli.progress import resumable_progress
from cli.select import warn_of_missing
from cli.session import open_home
from cli.students import add_to, say_dropped
from cli.tuning_options import TuningOptions, UpdateOptions

if TYPE_CHECKING:
    from backends.registry.registry import Registry
    from builder.levels.plan import LadderPlan
    from builder.requests.hplms import CreateHplm

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


def register(app: typer.Typer) -> None:
    app.command()(grouped(create))
    app.command()(grouped(update))
    app.command("list")(list_hplms)
    app.command()(show)
    app.command("eval")(evaluate)


def create(
    id: IdArgument,
    domain: DomainOption,
    train: TrainOption,
    dev: DevOption,
    test: TestOption = None,
    *,
    task: TaskOption = None,
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    students: Annotated[
        bool,
        typer.Option("--students", help="Then teach it to answer by its root's students, as 'hplm students add' does."),
    ] = False,
    tuning: TuningOptions,
    ray: TrialsRayOption = None,
    ladder: LadderOptions,
    as_json: JsonOption = False,
) -> None:
    """Tune an hPLM's adapters and head; a running server answers it within a second of the end.

    Interrupted, it goes on at its last epoch when the same command is given again.
    """
    from builder.requests.hplms import CreateHplm

    opened, registry = open_home(home)
    of_root = chosen_root(registry, root)
    request = CreateHplm(
        id=id,
        root=of_root,
        domain=domain,
        train=train,
        dev=dev,
        test=test,
        task=task,
        **tuning.fields(),
        ladder=ladder.ladder(),
    )
    registry.find_domain(of_root, domain)
    from builder.construct.hplm.hplms import create_hplm  # PyTorch takes seconds to import
    from builder.levels.plan import plan_creation

    if students:
        _require_students(opened, of_root)
    plan = plan_creation(opened, request)
    then = f"hplm infer {id} TEXT, of a running 'hplm serve'"
    with trial_map(ray, request.search, request.device) as fan_out, resumable_progress(id, then) as report:
        entry = create_hplm(opened, registry, request, report, noted=plan.figures, fan_out=fan_out)
    if students:
        entry = _with_students(opened, registry, entry, request, plan)
    _print_built(_with_ladder(opened, registry, entry, plan), as_json)


def _require_students(home: Home, root: str) -> None:
    """Check what students need, before anything is trained."""
    from backends.root.store import RootFolder
    from builder.construct.students.add import required_students

    required_students(RootFolder(home.root(root)))


def _with_students(
    home: Home, registry: Registry, entry: HplmEntry, request: CreateHplm, plan: LadderPlan
) -> HplmEntry:
    """Add students to a new hPLM; where that fails, the hPLM is there all the same."""
    files = f"--train {request.train} --dev {request.dev}"
    if request.unlabelled is not None:
        files += f" --unlabelled {request.unlabelled}"
    command = command_on(home, f"hplm students add {entry.id} {files}")
    goes_on_by = f"'{command}'" if plan.target is None else f"'{command}' and then '{command_on(home, plan.command)}'"
    typer.echo(f"version {entry.version} is live; if its students are interrupted: {command}", err=True)
    texts = request.train, request.dev, request.unlabelled
    try:
        return add_to(home, registry, entry.id, *texts, device=request.device, goes_on_by=goes_on_by)
    except HplmError as error:
        typer.echo(f"version {entry.version} is live, without students: {error}", err=True)
        return entry


def update(
    id: IdArgument,
    train: TrainOption,
    dev: DevOption,
    test: TestOption = None,
    *,
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
    tuning: UpdateOptions,
    ray: TrialsRayOption = None,
    ladder: LadderOptions,
    as_json: JsonOption = False,
) -> None:
    """Tune the next version of an hPLM, from the live one on; the old one serves until that is done.

    It moves to the live version of its domain, unless it is pinned. Other adapters than the live version's begin anew.
    """
    from builder.requests.hplms import UpdateHplm

    opened, registry = open_home(home)
    request = UpdateHplm(
        id=id,
        train=train,
        dev=dev,
        test=test,
        domain=domain,
        **tuning.fields(),
        from_scratch=from_scratch,
        labels_may_change=labels_may_change,
        force=force,
        ladder=ladder.ladder(),
    )
    before = registry.hplm(id)
    if domain is not None:
        registry.find_domain(before.domain.root, domain)
    from builder.construct.hplm.hplms import update_hplm  # PyTorch takes seconds to import
    from builder.levels.plan import plan_update

    plan = plan_update(opened, registry, request)
    back = command_on(opened, f"hplm rollback {id}")
    then = f"hplm infer {id} TEXT; '{back}' goes back"
    with trial_map(ray, request.search, request.device) as fan_out, resumable_progress(id, then) as report:
        entry = update_hplm(opened, registry, request, report, noted=plan.figures, fan_out=fan_out)
    say_dropped(opened, before, entry)
    _print_built(_with_ladder(opened, registry, entry, plan), as_json)


def _with_ladder(home: Home, registry: Registry, entry: HplmEntry, plan: LadderPlan) -> HplmEntry:
    """Select for a version that was just tuned, or say why it has no ladder."""
    if plan.target is None:
        return entry
    if plan.files is None:
        outcome = plan.select(home, registry, entry, lambda _: None)
    else:
        command, shows = command_on(home, plan.command), command_on(home, f"hplm select {entry.id} --show")
        typer.echo(f"version {entry.version} is live; if its selection is interrupted: {command}", err=True)
        with resumable_progress(f"{entry.id}: ladder", shows, f"'{command}'") as report:
            outcome = plan.select(home, registry, entry, report)
        warn_of_missing(home)
    if outcome.reason is not None:
        reason = outcome.reason.replace(plan.command, command_on(home, plan.command))
        typer.echo(f"version {entry.version} is live, without a ladder: {reason}", err=True)
    for warning in outcome.warnings:
        typer.echo(warning, err=True)
    return outcome.entry


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
    """One hPLM: labels, domain, and metrics as a default server answers the first time."""
    opened, registry = open_home(home)
    entry = registry.hplm(id)
    print_entry(_described(entry) | _in_int8(opened, registry, entry), as_json)


def evaluate(
    id: IdArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled examples, in the form of a training file.")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Measure the live version of an hPLM on a file, as a default server answers it the first time."""
    from builder.construct.hplm.evaluation import evaluate_hplm

    opened, registry = open_home(home)
    with resumable_progress(id) as report:
        found = evaluate_hplm(opened, registry, id, file, report)
    print_entry(found, as_json)


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


def _in_int8(home: Home, registry: Registry, entry: HplmEntry) -> dict[str, Any]:
    """Return the share of labels that int8 does not change, and the processor's instructions.

    It is null where the root was prepared for int8 without this version.
    """
    root = registry.root(entry.domain.root)
    try:
        fidelity = read_fidelity(home.root(root.name), root.fingerprint)
    except FileError as error:
        typer.echo(f"int8_equal_labels is not known: {error}", err=True)
        return {}
    if fidelity is None or entry.task == "regression":
        return {}
    kept = fidelity.equal_labels_of(entry.id, entry.version)
    return {"int8_equal_labels": None if kept is None else round(kept, 4), "int8_instructions": fidelity.instructions}


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
