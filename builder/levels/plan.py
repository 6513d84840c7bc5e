"""What becomes of a declared target when a version is tuned: checked before, and selected for afterwards.

A version is tuned and published first, with its target among its figures. The selection publishes the next one, with
the same weights and a ladder. Where the target cannot be met, the tuned version answers by all its layers, and the next
update tries the same target again.

Usage:
    plan = plan_creation(home, request)
    entry = create_hplm(home, registry, request, report, noted=plan.figures)
    outcome = plan.select(home, registry, entry, report)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.adapters.bank import read_artifact
from backends.engine.stack import StackSettings
from backends.errors import presentable
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.hplm.hplms import next_settings
from builder.construct.tasks.dataset import TaskFiles, read_task
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.exit_layers import as_layers, exits_named_before, exits_of, noted_exits
from builder.levels.ladder_costs import LadderCosts
from builder.levels.material import HplmTask, LabelledFiles, material_of
from builder.levels.selecting import Selecting, select_ladder
from builder.levels.served_stack import served_stack
from builder.levels.target import DECLARED, Target
from builder.progress import Report
from builder.requests.hplms import CreateHplm, Training, UpdateHplm

_NOTHING = TrainedTexts(np.empty(0, np.uint64))


@dataclass(frozen=True)
class Outcome:
    """The live version after a selection, why it has no ladder if it has none, and what may not hold of one."""

    entry: HplmEntry
    reason: str | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class LadderPlan:
    """The target of a version that is being tuned.

    Attributes:
        id: The hPLM.
        target: What may be lost; None where none is declared, so that no ladder is wanted.
        after: Layers that an early head may stand after; none for the default.
        files: Texts to learn from and to certify by; None where none are given, so that nothing can be selected.
        stack: The layers as they are served.
    """

    id: str
    target: Target | None = None
    after: tuple[int, ...] = ()
    files: LabelledFiles | None = None
    stack: StackSettings | None = None

    @property
    def figures(self) -> dict[str, Any]:
        """What the tuned version notes of its target."""
        if self.target is None:
            return {}
        return {DECLARED: self.target.noted | noted_exits(self.after)}

    @property
    def command(self) -> str:
        """The command that selects for the target, if texts certify it."""
        if self.target is None or self.files is None:
            return f"hplm select {self.id}"
        after = "".join(f" --after {each}" for each in self.after)
        files = f"--train {self.files.train} --held-out {self.files.held_out}"
        return f"hplm select {self.id} {files} {self.target.options}{after}"

    def select(self, home: Home, registry: Registry, entry: HplmEntry, report: Report) -> Outcome:
        """Select for the version that was tuned; whatever prevents a ladder is the outcome's reason."""
        if self.target is None:
            return Outcome(entry)
        if self.files is None or self.stack is None:
            reason = f"it was tuned for {self.target.shown}, which held-out texts have to certify: '{self.command}'"
            return Outcome(entry, reason)
        selecting = Selecting(self.id, self.files, self.target, self.after)
        try:
            found = select_ladder(home, registry, selecting, self.stack, report)
        except Exception as error:  # the version is live, whatever its selection runs into; a defect is logged
            return Outcome(entry, str(presentable(error)))
        return Outcome(found.entry, found.reason, found.warnings)


@dataclass(frozen=True)
class _Before:
    """What the next version takes over from the one before; the first takes over nothing."""

    task: str | None
    target: Target | None = None
    after: tuple[int, ...] = ()
    trained_on: TrainedTexts = _NOTHING


def plan_creation(home: Home, request: CreateHplm) -> LadderPlan:
    """Plan for a new hPLM.

    Raises:
        HplmError: No ladder could be selected, whatever the tuning's result.
    """
    return _checked(home, request, request.root_name, _Before(request.task))


def plan_update(home: Home, registry: Registry, request: UpdateHplm) -> LadderPlan:
    """Plan for the next version; without a target of its own it keeps the live one's. Raises as `plan_creation`."""
    live = registry.hplm(request.id)
    before, after = Target.of_version(live.metrics), exits_named_before(live.metrics)
    if request.ladder is None:
        return LadderPlan(request.id, before, after)
    trained_on = _taken_over(home, live, request)
    return _checked(home, request, live.domain.root, _Before(live.task, before, after, trained_on))


def _taken_over(home: Home, live: HplmEntry, request: UpdateHplm) -> TrainedTexts:
    """Return the texts that the next version will have learned from through the live one's weights."""
    folder = home.path / live.folder
    artifact = read_artifact(folder, RootFolder(home.root(live.domain.root)).fingerprint)
    _, goes_on = next_settings(artifact, request, request.teacher is not None)
    return TrainedTexts.read(folder) if goes_on else _NOTHING


def _checked(home: Home, request: Training, root: str, before: _Before) -> LadderPlan:
    ladder = request.ladder
    if ladder is None:
        return LadderPlan(request.id)
    target = Target.requested(ladder, before.target)
    after = as_layers(ladder.after) or before.after
    data = read_task(TaskFiles(request.train, request.dev, request.test), before.task)
    hplm = HplmTask(request.id, data.task, data.labels, data.pair)
    exits = exits_of(root, RootFolder(home.root(root)).geometry.num_upper_layers, after)
    LadderCosts.of(home, root).require_known(target.deadline_ms)
    files = LabelledFiles(request.train, ladder.held_out)
    material_of(files, hplm, before.trained_on, target, len(exits) if after else 1)
    return LadderPlan(request.id, target, after, files, served_stack(home))
