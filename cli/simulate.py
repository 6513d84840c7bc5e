"""`hplm simulate`: what a load would meet, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from builder.root_choice import chosen_root
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_entry, print_json, print_rows
from cli.session import open_home


def register(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    cost_model: Annotated[
        Path | None,
        typer.Option(help="A cost model as 'hplm profile' stores it, of any machine. \\[default: the root's]"),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="What runs next; may be repeated, all meet the same load. \\[default: fcfs]"),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="Requests per second; with an x, the multiple of what full batches can answer. "
            "\\[default: 1x, or a trace as it was recorded]"
        ),
    ] = None,
    arrivals: Annotated[str, typer.Option(help="poisson, even, gamma, mmpp (bursts) or trace:FILE.")] = "poisson",
    cv: Annotated[float, typer.Option(help="Of gamma: the gaps' coefficient of variation.")] = 2.0,
    burst_ratio: Annotated[float, typer.Option(help="Of mmpp: how much busier bursts are.")] = 9.0,
    burst_s: Annotated[float, typer.Option(help="Of mmpp: how long bursts, and the pauses between, last.")] = 2.0,
    speed: Annotated[float, typer.Option(help="Of a trace: 2 plays an hour in half an hour.")] = 1.0,
    lengths: Annotated[
        str, typer.Option(help="normal:DEVIATION (3 to 100 tokens around 20), fixed:TOKENS, or trace.")
    ] = "normal:20",
    tenants: Annotated[
        str, typer.Option(help="Whose requests: zipf:COUNT:EXPONENT, uniform:COUNT, or trace.")
    ] = "zipf:1000:1",
    deadlines: Annotated[
        str | None,
        typer.Option(
            help="From-to in milliseconds (50-200), or in times of a full batch (5x-20x). \\[default: best effort]"
        ),
    ] = None,
    duration_s: Annotated[
        float | None,
        typer.Option(help="Virtual seconds of load. \\[default: an hour, or a trace to its end]"),
    ] = None,
    retrieval_ms: Annotated[float, typer.Option(help="From a request's arrival to the upper half's queue.")] = 2.0,
    admission: Annotated[
        bool, typer.Option(help="Refuse at once what is predicted to be late, as a server does by default.")
    ] = True,
    max_rows: Annotated[int, typer.Option(help="Rows in a batch, at most.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Tokens in a batch, at most.")] = 4096,
    max_adapters: Annotated[int, typer.Option(help="Different hPLMs in a batch, at most.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the load.")] = 2024,
    as_json: JsonOption = False,
) -> None:
    """Play a load against a cost model in virtual time.

    An hour of a thousand requests a second takes half a minute, by slotted-das up to four.
    """
    from backends.scheduling.admission_settings import AdmissionSettings
    from backends.scheduling.policy import Capacity
    from builder.placement import Simulator
    from builder.placement.cost_file import cost_model_of, read_cost_model
    from builder.placement.described_workload import DescribedWorkload, Machine, workload_errors
    from builder.placement.policies import policy_named
    from builder.progress import progress_bars

    if cost_model is not None:
        model = read_cost_model(cost_model)
    else:
        opened, registry = open_home(home)
        model = cost_model_of(opened, chosen_root(registry, root))
    capacity = Capacity(max_rows, max_tokens, max_adapters)
    policies = {name: policy_named(name, model) for name in policy or ["fcfs"]}
    described = DescribedWorkload(
        arrivals, load, lengths, tenants, deadlines, retrieval_ms, cv, burst_ratio, burst_s, speed
    )
    workload = described.on(Machine(model, capacity))
    with workload_errors():
        drawn = workload.draw(described.duration_s(duration_s), seed)
    found = []
    for name, chosen in policies.items():
        with progress_bars(name) as report:
            simulation = Simulator(chosen, model, capacity, AdmissionSettings(predicts=admission)).run(drawn, report)
        found.append({"policy": name, **simulation.figures(), "refused": simulation.refused()})
    _print(found, as_json)


def _print(found: list[dict[str, Any]], as_json: bool) -> None:
    """One policy reads best from top to bottom, several side by side: a column for each."""
    if as_json:
        print_json(found)
        return
    described = [_described(one) for one in found]
    if len(described) == 1:
        print_entry(described[0], as_json=False)
        return
    names = dict.fromkeys(name for one in described for name in one)
    rows = [{"": name, **{one["policy"]: one.get(name, "") for one in described}} for name in names if name != "policy"]
    print_rows(rows, "policies on the same load", as_json=False)


def _described(one: dict[str, Any]) -> dict[str, str]:
    refused = {f"refused: {reason}": f"{count:,}" for reason, count in one["refused"].items()}
    figures = {name: _shown(value) for name, value in one.items() if name != "refused"}
    return {**figures, **refused}


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
