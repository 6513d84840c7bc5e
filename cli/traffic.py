"""`hplm traffic`: what servers recorded of their traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backends.home import Home
from builder.traffic.by import By
from cli.options import DEFAULT_HOME, HomeOption, JsonOption, print_entry, print_json, print_rows

if TYPE_CHECKING:
    from builder.traffic.traffic import Traffic

app = typer.Typer(help="Traffic that servers recorded: who asked what when, never a text.", no_args_is_help=True)

_SHOWN_GROUPS = 20
_MOMENT = "a date (2026-12-31, 2026-12-31T18:00, in UTC) or how long ago (90m, 12h, 7d)"
SinceOption = Annotated[str | None, typer.Option(help=f"From then on: {_MOMENT}. \\[default: all that was recorded]")]
UntilOption = Annotated[str | None, typer.Option(help=f"Until then: {_MOMENT}. \\[default: all that was recorded]")]


@app.command()
def show(
    home: HomeOption = DEFAULT_HOME,
    by: Annotated[By, typer.Option(help="Whose figures to show beside those of all.")] = By.TENANT,
    since: SinceOption = None,
    until: UntilOption = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the rates over time into this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Rates, burstiness, lengths, deadlines and shares of recorded traffic."""
    from builder.traffic.figures import groups, summary
    from builder.traffic.picture import draw_rates, sparkline

    traffic = _read(home, since, until)
    is_bounded = since is not None or until is not None
    if is_bounded and not (as_json or len(traffic.requests)):
        typer.echo("no traffic in that span", err=True)
        return
    figures, of_groups = summary(traffic), groups(traffic, by)
    if svg is not None:
        svg.write_text(draw_rates(traffic, by), encoding="utf-8")
    if as_json:
        print_json({**figures, "complaints": list(traffic.complaints), "by": by.value, "groups": of_groups})
        return
    print_entry({**_shown(figures), "over time": sparkline(traffic)}, as_json=False)
    print_rows([_shown(group) for group in of_groups[:_SHOWN_GROUPS]], f"by {by.value}", as_json=False)
    if len(of_groups) > _SHOWN_GROUPS:
        typer.echo(f"and {len(of_groups) - _SHOWN_GROUPS:,} more, which --json has", err=True)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file, which is replaced.")],
    home: HomeOption = DEFAULT_HOME,
    since: SinceOption = None,
    until: UntilOption = None,
) -> None:
    """Write a trace for hplm simulate, place and loadtest: a line for each row that was asked, rejected ones too."""
    from builder.traffic.trace import write_trace

    num_rows = write_trace(_read(home, since, until), file)
    simulates, places = f"hplm simulate --arrivals trace:{file}", f"hplm place --traffic {file}"
    typer.echo(f"{file}: {num_rows:,} rows, for {simulates}, {places} or hplm loadtest trace")


def _read(home: Path, since: str | None, until: str | None) -> Traffic:
    """Read the traffic of a home, and say what was left out."""
    from builder.traffic.traffic import read_traffic

    bounds = [_moment_us(text, option) for text, option in ((since, "--since"), (until, "--until"))]
    traffic = read_traffic(Home(home).traffic)
    for complaint in traffic.complaints:
        typer.echo(complaint, err=True)
    return traffic.between(*bounds)


def _moment_us(text: str | None, option: str) -> int | None:
    from cli.moments import read_moment

    return None if text is None else round(1e6 * read_moment(text, option, sign=-1))


def _shown(figures: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", " "): value for name, value in figures.items()}
