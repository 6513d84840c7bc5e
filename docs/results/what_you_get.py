"""The page for tenants: what ladders chose, promise and save, task by task, from the JSON of `bench.levels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = """<!-- Written by `make results` from levels.json; do not edit. -->

# What a ladder gives you

Many texts are easy. With a [ladder](../explanation/levels.md) these are answered after some of the layers, and the
others by all of them. You say how many points of accuracy you can spare; `hplm select` finds how sure an early answer
has to be, and a test on texts that it has not learned from promises what that costs.

![Mean latency with a ladder and by all layers](../pictures/ladders.svg)"""
_OF_NUMBERS = """Tasks whose answers are numbers can have ladders, too, with a promise of
[another kind](../explanation/levels.md#make-a-ladder). None of them is among these."""
_FOOT = """## The same for your texts

```sh
hplm select acme/area --train train.jsonl --held-out held_out.jsonl --max-drop 1
```

It prints what your own texts allow, and publishes nothing where they allow nothing.
[Make a ladder](../explanation/levels.md#make-a-ladder) has the other targets, and how many texts each needs. A request
for `level="full"` is always answered by all layers."""

_COST = (
    "task",
    "texts may leave after",
    "where this sure",
    "answered early",
    "right by all layers, %",
    "right with the ladder, %",
    "lost at most, promised",
    "lost, measured",
)
_TIME = ("task", "alone, all layers", "alone, ladder", "", "under load, all layers", "under load, ladder", "")
_ABOUT = {
    "bc5cdr": "chemicals and diseases in abstracts",
    "chemprot": "how a chemical acts on a protein",
    "clinc150": "what a user wants of an assistant, 150 intents",
    "csabstruct": "the role of a sentence in an abstract",
    "mrpc": "whether two sentences say the same",
    "ncbi-disease": "diseases in abstracts",
    "sci-cite": "why a paper is cited",
    "sciie-relations": "how two terms of an abstract are related",
    "sst2": "whether a film review is positive",
}


def what_you_get(report: Mapping[str, Any]) -> str:
    settings, rows = report["settings"], report["rows"]
    laddered = [row for row in rows if "after" in row]
    parts = [_HEAD, _summary(report["figures"], laddered), _cost(laddered, settings), _time(laddered, settings)]
    if len(laddered) < len(rows):
        parts.append(_without([row for row in rows if "after" not in row]))
    return "\n\n".join([*parts, _OF_NUMBERS, _FOOT, _measured_on(report)]) + "\n"


def _summary(figures: Mapping[str, float], laddered: Sequence[Mapping[str, Any]]) -> str:
    return f"""| over the {len(laddered)} tasks that have a ladder | |
|---|---|
| texts that are answered early | {_percent(figures["answered_early_mean"])} |
| accuracy lost, in points of 100 | {figures["drop_points_mean"]:.2f} |
| mean latency of a text that is asked alone | {_change(figures["lone_latency_ratio"])} |
| the slowest of a hundred such texts | {_change(figures["p99_ratio_lone"])} |
| mean latency under load | {_change(figures["latency_ratio_at_0_8"])} |
| texts a second on the same machine | {_change(figures["rows_per_s_ratio"])} |"""


def _cost(laddered: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    lines, certainty = [_cost_line(row) for row in laddered], settings["certainty"]
    return f"""## What it costs

Each ladder was selected with `--max-drop {settings["max_drop"]:g}`, at a certainty of {_percent(certainty)}.
What was lost then is of test texts, as a server answered them the first time.

{chr(10).join([*_table_head(*_COST), *lines])}

- *Promised* is the bound that the test found, in points, for texts like its own. {_percent(1 - certainty)}
  of all ladders may lose more than was allowed.
- *Measured* is of so many test texts that it has the error behind ±. Below zero it is a gain: there the early answers
  were right more often.
- The texts of the test have also chosen each hPLM's epoch. That flatters all layers, so the promise errs on the safe
  side.
- Nothing is promised of each class or of each text."""


def _cost_line(row: Mapping[str, Any]) -> str:
    cells = [
        _task(row),
        f"{row['after']} of {row['layers']} layers",
        _percent(row["threshold"]),
        _percent(row["answered early"]),
        f"{row['full']:.1f}",
        f"{row['ladder']:.1f}",
        f"{row['drop promised']:.2f}",
        f"{row['drop']:.2f} ± {row['drop error']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _time(laddered: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    lines = [f"| {_task(row)} | {_times(row, 'alone ms')} | {_times(row, 'loaded ms')} |" for row in laddered]
    return f"""## What it saves

Milliseconds from the request to the answer, as the client sees them, on average over all texts of a task.

{chr(10).join([*_table_head(*_TIME), *lines])}

*Under load* is {settings["load"]:g} of what the server bears when all layers answer, the same requests for both. A text
that leaves makes room, so those that stay wait less, too."""


def _without(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| {_task(row)} | {row['no ladder'].partition(';')[0]} |" for row in rows]
    return f"""## Tasks without a ladder

All layers answer their texts, as before.

{chr(10).join([*_table_head("task", "why"), *lines])}"""


def _measured_on(report: Mapping[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']} ({machine['instructions']}), which clients and server shared"
    return f"""Measured on {where}: root {settings["root"]}, {settings["tenants"]} tenants, medians of
{settings["rounds"]} rounds. [The bench's table](levels.md) has all figures."""


def _table_head(*columns: str) -> tuple[str, str]:
    return f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"


def _task(row: Mapping[str, Any]) -> str:
    """Name a task by what it is about, where that is known."""
    about = _ABOUT.get(row["task"])
    return row["task"] if about is None else f"{about} ({row['task']})"


def _times(row: Mapping[str, Any], column: str) -> str:
    full, ladder = row[f"{column}, full"], row[f"{column}, auto"]
    return f"{full:.3g} | {ladder:.3g} | {_change(ladder / full)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _change(ratio: float) -> str:
    """Say by how much less or more."""
    percent = round(100 * abs(ratio - 1))
    return "the same" if percent == 0 else f"{percent} % {'less' if ratio < 1 else 'more'}"
