"""`hplm profile`: what batches take on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from backends.errors import InvalidArgumentError
from builder.root_choice import chosen_root
from cli.next_command import command_on
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, RootOption, print_entry
from cli.session import open_home

if TYPE_CHECKING:
    from backends.scheduling.cost_profile import CostProfile

_GOOD_ERROR_PERCENT = 10.0


def register(app: typer.Typer) -> None:
    app.command()(profile)


def profile(
    home: HomeOption = DEFAULT_HOME,
    root: RootOption = None,
    dtype: Annotated[
        Literal["bf16", "fp32", "int8", "fp8"] | None,
        typer.Option(
            help="What the upper layers compute in; the result replaces the stored one. \\[default: as exported]"
        ),
    ] = None,
    device: Annotated[
        Literal["cpu", "gpu"] | None, typer.Option(help="Where they run. \\[default: as exported]")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that compute. \\[default: as exported, or all that PyTorch takes]"),
    ] = None,
    batches: Annotated[int, typer.Option(help="Different batches to measure, at least 40.")] = 160,
    repeats: Annotated[int, typer.Option(help="How often each is measured; the median counts.")] = 9,
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 17,
    show: Annotated[bool, typer.Option("--show", help="Measure nothing; print what was found before.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what batches of a root take on this machine, and keep the cost model that the server predicts with.

    Takes a minute or more, on a machine that does nothing else; the server reads it when it starts.
    """
    opened, registry = open_home(home)
    name = chosen_root(registry, root)
    if show:
        from backends.scheduling.cost_profile import has_profile, read_profile

        if not has_profile(opened.profile(name)):
            makes = command_on(opened, f"hplm profile --root {name}")
            raise InvalidArgumentError(f"root {name!r} has no cost model yet; '{makes}' makes one")
        print_entry(_described(name, read_profile(opened.profile(name))), as_json)
        return
    import torch

    from backends.engine.settings import EngineSettings
    from builder.export.rendered import upper_settings
    from builder.profiling.cost_profiling import ProfileSettings, profile_root
    from builder.progress import progress_bars

    settings, is_exported_to_gpu = upper_settings(opened)
    given = {"dtype": dtype, "threads": None if threads is None else str(threads)}
    settings = settings.with_parameters({key: value for key, value in given.items() if value is not None})
    on_gpu = is_exported_to_gpu if device is None else device == "gpu"
    if on_gpu and not torch.cuda.is_available():
        raise InvalidArgumentError("PyTorch finds no GPU here; run this where the server runs, or with --device cpu")
    engine = EngineSettings.from_model(settings, "cuda:0" if on_gpu else "cpu")
    with progress_bars(name) as report:
        found = profile_root(opened, registry, name, engine, ProfileSettings(batches, repeats, seed), report)
    print_entry(_described(name, found), as_json)
    if found.error_percent > _GOOD_ERROR_PERCENT:
        typer.echo(
            "the error is large; was the machine busy with something else? more --repeats even out a part of that",
            err=True,
        )


def _described(root: str, profile: CostProfile) -> dict[str, Any]:
    measured = profile.measured
    return {
        "root": root,
        "device": measured.device,
        "dtype": measured.dtype,
        "layout": measured.layout,
        "threads": measured.threads,
        "torch": profile.torch_version,
        "batches": profile.num_samples,
        "error_percent": round(profile.error_percent, 2),
        **{name: round(value, 4) for name, value in profile.model.to_json().items()},
    }
