"""Writes the index of the results and the page for tenants from index.toml and the JSON beside it: `make results`."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from what_you_get import what_you_get

RESULTS = Path(__file__).parent
_LADDERS = "levels"
_FOR_TENANTS = "For tenants: [what a ladder gives you](what-you-get.md), task by task."
HEAD = """<!-- Written by `make results` from index.toml and the JSON beside it; do not edit. -->

# Results

Each line is one number of one committed run: what was measured, the figure, what measures it, and the page. A page's
head has the exact command, its foot the settings and the machine. `.venv/bin/python -m bench` lists the benches;
`.venv/bin/python -m bench NAME` runs one again.

All runs but those of the last table were on two CPU cores without a GPU, shared by clients and server, in bf16 unless a
line says otherwise. A *row* is one text of a request. Processors with AMX multiply up to six times as fast as those
without; notes say what changes. Processors without bf16 instructions compute in fp32 or int8
([choose a dtype](../how-to/choose-a-dtype.md)). hPLMs have a bottleneck of 64 in each layer where a line does not say
that they have the default adapters; [mixing](mixing.md) compares both.

![Texts a second by the number of tenants](../pictures/tenants.svg)"""


@dataclass(frozen=True)
class Notes:
    """The notes of one table, numbered as they are first met."""

    shared: Mapping[str, str]
    texts: list[str] = field(default_factory=list)

    def marks(self, row: Mapping[str, Any]) -> str:
        """Return what stands behind the row's first cell: the numbers of its notes."""
        texts = [self.shared[name] for name in row.get("notes", [])]
        texts += [row["note"]] if "note" in row else []
        if row.get("without_amx"):
            page = f"no_amx/{row['page']}"
            texts.append(f"Without AMX [{figure(row, page)}]({page}.md).")
        self.texts.extend(text for text in texts if text not in self.texts)
        numbers = sorted(self.texts.index(text) + 1 for text in texts)
        return f" ({', '.join(map(str, numbers))})" if numbers else ""

    def lines(self) -> Iterator[str]:
        for number, text in enumerate(self.texts, start=1):
            yield f"{number}. {text}"


def index() -> str:
    content = tomllib.loads((RESULTS / "index.toml").read_text(encoding="utf-8"))
    sections = (_section(group, Notes(content["notes"])) for group in content["group"])
    for_tenants = [_FOR_TENANTS] if (RESULTS / f"{_LADDERS}.json").exists() else []
    return "\n\n".join([HEAD, *for_tenants, *sections]) + "\n"


def _section(group: Mapping[str, Any], notes: Notes) -> str:
    lines = [f"## {group['title']}", "", "| what | figure | measured by | page |", "|---|---|---|---|"]
    for row in group["row"]:
        if "page" in row:
            shown, command, page = figure(row, row["page"]), _command(row["page"]), f"[{row['page']}]({row['page']}.md)"
        else:
            shown, command, page = row["shown"], row["command"], "–"
        lines.append(f"| {row['what']}{notes.marks(row)} | {shown} | `{command}` | {page} |")
    return "\n".join([*lines, "", *notes.lines()]).rstrip()


def figure(row: Mapping[str, Any], page: str) -> str:
    """Return the row's number as a page's JSON has it, in the row's form."""
    report = _report(page)
    if "in" in row:
        (found,) = (line for line in report["rows"] if all(line[key] == value for key, value in row["in"].items()))
    else:
        found = report["figures"] if "figures" in report else report["fidelity"]
    return str(row["form"]).format(found[row["figure"]] * row.get("times", 1))


def _command(page: str) -> str:
    report = _report(page)
    return f"bench.{report['bench']}" if "bench" in report else "hplm root add"


def _report(page: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / f"{page}.json").read_text(encoding="utf-8"))
    return report


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    (folder / "index.md").write_text(index(), encoding="utf-8")
    if (RESULTS / f"{_LADDERS}.json").exists():
        (folder / "what-you-get.md").write_text(what_you_get(_report(_LADDERS)), encoding="utf-8")
