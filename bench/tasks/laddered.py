"""Tasks as their tenants have them: tuned, a ladder selected, and copied for as many tenants as are wanted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.adapters.bank import HplmArtifact
from backends.adapters.ladder import LADDER_FILES
from backends.errors import HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from bench.kit.bulk import NewHplm, register_hplms
from bench.kit.synthetic_home import MANIFEST, copy_manifest, link_or_copy
from bench.kit.trials import Trials
from bench.tasks.cut import CutTask
from bench.tasks.shared_tuning import SharedTunings
from builder.construct.hplm.hplms import building_hplm, publish_artifact
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.material import LabelledFiles
from builder.levels.selecting import Selecting, levels_of, select_ladder
from builder.levels.served_stack import served_stack
from builder.levels.target import Target
from builder.progress import Report, progress_bars
from builder.requests.domains import GENERAL_DOMAIN

_OWNER = "levels"
_LADDER_FIGURES = ("levels", "ladder")


@dataclass(frozen=True)
class LadderedTask:
    """A task's hPLM, and what its selection found.

    Attributes:
        name: The task.
        entry: The live version.
        found: The figures of its ladder, as `hplm select --show` tells them; empty without a ladder.
        reason: Why it has none.
        select_s: What the selection took.
    """

    name: str
    entry: HplmEntry
    found: Mapping[str, Any]
    reason: str | None
    select_s: float


class LadderedTasks:
    """Makes hPLMs on one root, with ladders that lose `target` at most, in a copy of its home that may be kept."""

    def __init__(self, copy: Home, tunings: SharedTunings, target: Target, trials: Trials) -> None:
        self._home, self._tunings, self._target = copy, tunings, target
        self._registry, self._trials = Registry.open(copy), trials

    def made(self, name: str, cut: CutTask) -> LadderedTask:
        """Tune and select what was not yet; the dev texts choose the epoch, and certify."""
        hplm, trial = f"{_OWNER}/{name}", f"ladder-{name}"
        with progress_bars(name) as report:
            if not self._registry.has_hplm(hplm):
                self._publish(self._tunings.tuned(hplm, cut, report), cut)
            if (rows := self._trials.find(trial)) is None:
                rows = [self._selected(hplm, LabelledFiles(cut.files.train, cut.files.dev), report)]
                self._trials.keep(trial, rows)
        entry = self._registry.hplm(hplm)
        return LadderedTask(name, entry, levels_of(entry) if _has_ladder(entry) else {}, **rows[0])

    def _publish(self, artifact: HplmArtifact, cut: CutTask) -> None:
        trained, domain = TrainedTexts.of(cut.read().train), self._registry.domain(self._tunings.root, GENERAL_DOMAIN)
        with building_hplm(self._home, artifact.hplm):
            publish_artifact(self._home, self._registry, artifact, domain, {}, pinned=False, made_with=trained)

    def _selected(self, hplm: str, files: LabelledFiles, report: Report) -> dict[str, Any]:
        began_s = time.monotonic()
        try:
            selecting = Selecting(hplm, files, self._target)
            found = select_ladder(self._home, self._registry, selecting, served_stack(self._home), report)
            reason = found.reason
        except HplmError as error:  # too few texts, or too few layers: such a task has no ladder
            reason = str(error)
        return {"reason": reason, "select_s": time.monotonic() - began_s}


def _has_ladder(entry: HplmEntry) -> bool:
    return "ladder" in entry.metrics


def add_tenants(home: Home, models: Sequence[HplmEntry], count: int, has_ladders: bool) -> list[str]:
    """Add hPLMs that are copies of these models in turn, each of a tenant of its own; returns their IDs."""
    copies = [
        (f"tenant{number}/{_name(models[number % len(models)])}", number % len(models)) for number in range(count)
    ]
    register_hplms(home, [_copied(home, models[model], hplm, has_ladders) for hplm, model in copies])
    return [hplm for hplm, _ in copies]


def task_of(hplm: str) -> str:
    """Return the task of a tenant's hPLM."""
    return hplm.partition("/")[2]


def _name(model: HplmEntry) -> str:
    return task_of(model.id)


def _copied(home: Home, model: HplmEntry, hplm: str, has_ladder: bool) -> NewHplm:
    """Link the files of a model under another name; not made durable, as the home does not outlive the bench."""
    target = home.bank(model.domain.root, hplm, 1)
    target.mkdir(parents=True)
    for path in (home.path / model.folder).iterdir():
        if path.name != MANIFEST and (has_ladder or path.name not in LADDER_FILES):
            link_or_copy(path, target / path.name)
    copy_manifest(home.path / model.folder, target, hplm)
    metrics = {name: value for name, value in model.metrics.items() if has_ladder or name not in _LADDER_FIGURES}
    return NewHplm(hplm, model.domain, home.relative(target), model.task, model.labels, metrics, model.pair)
