"""`hplm select --all`: a ladder for every hPLM by the same plain texts, one after another; one that fails stops none.

An hPLM whose ladder keeps that target already is left as it is, so that a run which was interrupted goes on.
"""

from __future__ import annotations

from typing import Any

from backends.engine.stack import StackSettings
from backends.errors import HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from builder.levels.material import LabelledFiles, UnlabelledFile
from builder.levels.selecting import Selecting, levels_of, select_ladder
from builder.levels.target import Target
from builder.progress import Report, Step


def select_all(
    home: Home,
    registry: Registry,
    files: LabelledFiles | UnlabelledFile,
    target: Target,
    after: int | None,
    settings: StackSettings,
    report: Report,
) -> list[dict[str, Any]]:
    """Select for all live hPLMs; returns a row for each, which says what became of it."""
    hplms, rows = registry.hplms(), list[dict[str, Any]]()
    for number, live in enumerate(hplms):
        report(Step("select", number, len(hplms)))
        selecting = Selecting(live.id, files, target, after)
        rows.append(_selected(home, registry, live, selecting, settings))
    report(Step("select", len(hplms), len(hplms)))
    return rows


def _selected(
    home: Home, registry: Registry, live: HplmEntry, selecting: Selecting, settings: StackSettings
) -> dict[str, Any]:
    if _keeps(live, selecting):
        return _row(live, "has that ladder already")
    try:
        found = select_ladder(home, registry, selecting, settings, lambda _: None)
    except HplmError as error:
        return _row(live, str(error))
    return _row(found.entry, "selected" if found.reason is None else found.reason)


def _keeps(live: HplmEntry, selecting: Selecting) -> bool:
    told = levels_of(live)
    same_target = (told.get("target"), told.get("certainty")) == (selecting.target.shown, selecting.target.certainty)
    return same_target and selecting.after in (None, told.get("after"))


def _row(entry: HplmEntry, outcome: str) -> dict[str, Any]:
    told = levels_of(entry)
    return {
        "id": entry.id,
        "version": entry.version,
        "answered_early": told.get("answered_early"),
        "bound": told.get("bound"),
        "outcome": outcome,
    }
