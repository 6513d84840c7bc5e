"""Commands about domains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from builder.root_choice import chosen_root
from builder.settings.device import AUTO
from builder.settings.domain import DOMAIN_THETA, HEAD_STEPS, LOWER_STEPS, MAX_FRAGMENTS, Pace
from cli.map_options import MapOptions
from cli.next_command import command_on
from cli.option_groups import grouped
from cli.options import (
    DEFAULT_HOME,
    CorpusOption,
    DeviceOption,
    HomeOption,
    JsonOption,
    MaxFragmentsOption,
    RootOption,
    print_entry,
    print_rows,
)
from cli.progress import resumable_progress
from cli.session import open_home

app = typer.Typer(help="Domains: what a field of text has taught the lower layers, as a table.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The domain's name.")]
ThetaOption = Annotated[
    float, typer.Option(help="Share of the corpus's distinct fragments that the table holds, most frequent first.")
]
_SHOWN_THETAS = (0.0001, 0.0003, 0.001, 0.003, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class PretrainingOptions:
    mlm_steps: Annotated[
        int,
        typer.Option("--mlm-steps", min=0, help="Steps of masked-LM pretraining; about two seconds each on two cores."),
    ] = LOWER_STEPS
    no_pretrain: Annotated[
        bool, typer.Option("--no-pretrain", help="Keep the lower layers as they are; the same as --mlm-steps 0.")
    ] = False
    head_steps: Annotated[
        int,
        typer.Option(
            min=1, help="Steps for the head that guesses masked tokens; only a root's first domain trains it."
        ),
    ] = HEAD_STEPS
    held_out: Annotated[
        Path | None, typer.Option(help="Texts to measure with; otherwise a small part of the corpus is held out.")
    ] = None
    seed: Annotated[int, typer.Option(help="Decides the order of the texts and which of their tokens are masked.")] = (
        Pace.seed
    )

    device: DeviceOption = AUTO

    def fields(self) -> dict[str, Any]:
        """The fields of a request that these options fill."""
        mlm_steps = 0 if self.no_pretrain else self.mlm_steps
        return {
            "mlm_steps": mlm_steps,
            "head_steps": self.head_steps,
            "held_out": self.held_out,
            "seed": self.seed,
            "device": self.device,
        }


@app.command()
@grouped
def create(
    name: NameArgument,
    corpus: CorpusOption,
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    *,
    parent: Annotated[
        str, typer.Option(help="The domain that answers what this one does not hold; NAME, or NAME@VERSION.")
    ] = "general",
    theta: ThetaOption = DOMAIN_THETA,
    max_fragments: MaxFragmentsOption = MAX_FRAGMENTS,
    pretraining: PretrainingOptions,
    mapping: MapOptions,
) -> None:
    """Pretrain the lower layers further on a corpus and build the domain's table from them.

    The root's first domain also trains the head that guesses masked tokens. When it is interrupted, the same command
    goes on where it was.
    """
    from builder.requests.domains import CreateDomain

    opened, registry = open_home(home)
    of_root = chosen_root(registry, root)
    request = CreateDomain(
        name=name,
        root=of_root,
        corpus=corpus,
        parent=parent,
        theta=theta,
        max_fragments=max_fragments,
        **pretraining.fields(),
    )
    registry.find_domain(of_root, parent)
    from builder.construct.domain.domains import create_domain  # PyTorch takes seconds to import

    then = command_on(opened, f"hplm create TENANT/NAME --domain {name} --train FILE --dev FILE")
    with mapping.map() as fan_out, resumable_progress(name, then) as report:
        entry = create_domain(opened, registry, request, report, fan_out)
    print_entry(_described(registry, entry), as_json=False)


@app.command()
@grouped
def update(
    name: NameArgument,
    corpus: CorpusOption,
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    *,
    parent: Annotated[
        str | None, typer.Option(help="Another parent; NAME, or NAME@VERSION. Otherwise the same version as before.")
    ] = None,
    theta: Annotated[float | None, typer.Option(help="As in create; otherwise as before.")] = None,
    max_fragments: Annotated[int | None, typer.Option(help="As in create; otherwise as before.")] = None,
    pretraining: PretrainingOptions,
    keep_learned: Annotated[
        bool,
        typer.Option(
            "--keep-learned/--cut-learned",
            help="Whether the table holds what servers have learned however rare it is, or theta decides on that too.",
        ),
    ] = True,
    mapping: MapOptions,
) -> None:
    """Make a domain's next version: pretraining goes on with new texts, and their fragments join those counted so far.

    What the servers have learned beside any of its versions is folded in. hPLMs stay on the version that they were
    tuned on until they are updated themselves; the live version serves until the new one is whole.
    """
    from builder.requests.domains import UpdateDomain

    opened, registry = open_home(home)
    of_root = chosen_root(registry, root)
    request = UpdateDomain(
        name=name,
        root=of_root,
        corpus=corpus,
        parent=parent,
        theta=theta,
        max_fragments=max_fragments,
        **pretraining.fields(),
        keep_learned=keep_learned,
    )
    registry.domain(of_root, name)
    if parent is not None:
        registry.find_domain(of_root, parent)
    from builder.construct.domain.domains import update_domain  # PyTorch takes seconds to import

    moves = command_on(opened, "hplm update ID --train FILE --dev FILE")
    with mapping.map() as fan_out, resumable_progress(name, f"{moves} moves an hPLM to it") as report:
        entry = update_domain(opened, registry, request, report, fan_out)
    print_entry(_described(registry, entry), as_json=False)


@app.command("list")
def list_domains(home: HomeOption = DEFAULT_HOME, root: RootOption = None, as_json: JsonOption = False) -> None:
    """The live version of every domain."""
    _, registry = open_home(home)
    named = None if root is None else registry.root(root).name
    print_rows([_summary(registry, entry) for entry in registry.domains(named)], "domains", as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="NAME, or NAME@VERSION.")],
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """One domain: what its table takes, which share of texts it answers, what pretraining did."""
    _, registry = open_home(home)
    entry = registry.find_domain(chosen_root(registry, root), name)
    print_entry({**_described(registry, entry), "folders": list(entry.folders)}, as_json)


@app.command()
def coverage(
    name: Annotated[str, typer.Argument(help="NAME, or NAME@VERSION.")],
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curve into this file: .svg, .png or .pdf.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which share of a domain's corpus the most frequent fragments cover, for choosing --theta."""
    from backends.plot.counts import FragmentCounts
    from builder.construct.domain.coverage import draw_coverage

    opened, registry = open_home(home)
    entry = registry.find_domain(chosen_root(registry, root), name)
    counts = FragmentCounts.read(opened.path / entry.folders[0])
    if plot is not None:
        draw_coverage({entry.label: counts}, entry.metrics.get("theta"), plot)
    rows = [
        {"theta": theta, "fragments": len(top.keys), "share": round(top.num_occurrences / counts.num_occurrences, 4)}
        for theta in _SHOWN_THETAS
        if (top := counts.top(theta)).keys.size
    ]
    print_rows(rows, "fragments", as_json)


def _described(registry: Registry, entry: DomainEntry) -> dict[str, Any]:
    return {**_name(registry, entry), **entry.metrics}


def _summary(registry: Registry, entry: DomainEntry) -> dict[str, Any]:
    measured = ("size_bytes", "own_fragments", "own_share", "chain_share", "held_out_chain_share", "mlm_loss_after")
    return {**_name(registry, entry), **{name: entry.metrics.get(name) for name in measured}}


def _name(registry: Registry, entry: DomainEntry) -> dict[str, Any]:
    parent = registry.domain_parent(entry)
    label = parent.label if parent else None
    return {"name": entry.name, "version": entry.version, "root": entry.root, "parent": label}
