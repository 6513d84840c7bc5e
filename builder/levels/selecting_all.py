"""`hplm select --all`: a ladder for every hPLM by the same plain texts, one after another; one that fails stops none.

An hPLM that has a ladder is left as it is: one for this target, so that a run which was interrupted goes on, and one
for another, which labelled texts may have certified.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from backends.engine.stack import StackSettings
from backends.errors import HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from builder.levels.material import UnlabelledFile, require_plain_texts
from builder.levels.selecting import Selecting, levels_of, select_ladder
from builder.levels.target import LADDER, Target
from builder.progress import Report, Step
from builder.requests.levels import LadderTarget

LOGGER = logging.getLogger(__name__)
SELECTED, KEPT = "selected", "keeps its ladder"
"""How the outcome begins of an hPLM that has a ladder now; of others it says why they have none."""


def select_all(
    home: Home,
    registry: Registry,
    files: UnlabelledFile,
    requested: LadderTarget,
    after: tuple[int, ...],
    settings: StackSettings,
    report: Report,
) -> list[dict[str, Any]]:
    """Select for all live hPLMs; returns a row for each, which says what became of it.

    Raises:
        InvalidArgumentError: The target needs labels.
        TrainingDataError: The file is no file of plain texts.
    """
    require_plain_texts(files.path, Target.requested(requested))
    hplms, rows = registry.hplms(), list[dict[str, Any]]()
    for number, live in enumerate(hplms):
        report(Step("select", number, len(hplms)))
        rows.append(_selected(home, registry, live, files, requested, after, settings))
    report(Step("select", len(hplms), len(hplms)))
    return rows


def _selected(
    home: Home,
    registry: Registry,
    live: HplmEntry,
    files: UnlabelledFile,
    requested: LadderTarget,
    after: tuple[int, ...],
    settings: StackSettings,
) -> dict[str, Any]:
    if (ladder := live.metrics.get(LADDER)) is not None:
        kept = Target.of_version({LADDER: ladder})
        return _row(live, KEPT if kept is None else f"{KEPT}: {kept.promise}")
    try:
        target = Target.requested(requested, Target.of_version(live.metrics))
        found = select_ladder(home, registry, Selecting(live.id, files, target, after), settings, lambda _: None)
    except HplmError as error:
        return _row(live, str(error))
    except Exception as error:  # a file that cannot be read, say, or a defect that one hPLM meets
        LOGGER.exception("%s was not selected", live.id)
        return _row(live, f"{type(error).__name__}: {error}")
    return _row(found.entry, SELECTED if found.reason is None else found.reason, found.warnings)


def _row(entry: HplmEntry, outcome: str, warnings: Sequence[str] = ()) -> dict[str, Any]:
    told = levels_of(entry)
    return {
        "id": entry.id,
        "version": entry.version,
        "answered_early": told.get("answered_early"),
        "bound": told.get("bound"),
        "outcome": outcome,
        "warnings": "; ".join(warnings),
    }
