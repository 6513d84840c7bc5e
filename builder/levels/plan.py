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

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.engine.stack import StackSettings
from backends.errors import HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.tasks.dataset import TaskFiles, read_task
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.material import HplmTask, LabelledFiles, material_of
from builder.levels.selecting import Selecting, exit_of, select_ladder
from builder.levels.served_stack import served_stack
from builder.levels.target import DECLARED, Target
from builder.progress import Report
from builder.requests.hplms import CreateHplm, Training, UpdateHplm

LOGGER = logging.getLogger(__name__)
_NOTHING_KNOWN = TrainedTexts(np.empty(0, np.uint64))


@dataclass(frozen=True)
class Outcome:
    """The live version after a selection, and why it has no ladder if it has none."""

    entry: HplmEntry
    reason: str | None = None


@dataclass(frozen=True)
class LadderPlan:
    """The target of a version that is being tuned.

    Attributes:
        id: The hPLM.
        target: What may be lost; None where none is declared, so that no ladder is wanted.
        after: Layers before the early head; None for the default.
        files: Texts to learn from and to certify by; None where none are given, so that nothing can be selected.
        stack: The layers as they are served.
    """

    id: str
    target: Target | None = None
    after: int | None = None
    files: LabelledFiles | None = None
    stack: StackSettings | None = None

    @property
    def figures(self) -> dict[str, Any]:
        """What the tuned version notes of its target."""
        if self.target is None:
            return {}
        return {DECLARED: self.target.noted | ({} if self.after is None else {"after": self.after})}

    @property
    def command(self) -> str:
        """The command that selects for the target, if texts certify it."""
        if self.target is None or self.files is None:
            return f"hplm select {self.id}"
        after = "" if self.after is None else f" --after {self.after}"
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
        except HplmError as error:
            return Outcome(entry, str(error))
        except (OSError, RuntimeError, MemoryError) as error:  # a full disk, no memory: the tuned version is live
            LOGGER.exception("no ladder for %s", self.id)
            return Outcome(entry, f"the selection failed: {type(error).__name__}: {error}")
        return Outcome(found.entry, found.reason)


def plan_creation(home: Home, request: CreateHplm) -> LadderPlan:
    """Plan for a new hPLM.

    Raises:
        HplmError: No ladder could be selected, whatever the tuning's result.
    """
    return _checked(home, request, request.root_name, request.task)


def plan_update(home: Home, registry: Registry, request: UpdateHplm) -> LadderPlan:
    """Plan for the next version; without a target of its own it keeps the live one's. Raises as `plan_creation`."""
    live = registry.hplm(request.id)
    before, after = Target.of_version(live.metrics), _exit_before(live)
    if request.ladder is None:
        return LadderPlan(request.id, before, after)
    known = _NOTHING_KNOWN if request.from_scratch else TrainedTexts.read(home.path / live.folder)
    return _checked(home, request, live.domain.root, live.task, before, after, known)


def _exit_before(live: HplmEntry) -> int | None:
    noted = live.metrics.get(DECLARED) or live.metrics.get("ladder", {})
    after: int | None = noted.get("after")
    return after


def _checked(
    home: Home,
    request: Training,
    root: str,
    task: str | None,
    before: Target | None = None,
    after: int | None = None,
    known: TrainedTexts = _NOTHING_KNOWN,
) -> LadderPlan:
    ladder = request.ladder
    if ladder is None:
        return LadderPlan(request.id)
    target, after = Target.requested(ladder, before), after if ladder.after is None else ladder.after
    data = read_task(TaskFiles(request.train, request.dev, request.test), task)
    hplm = HplmTask(request.id, data.task, data.labels, data.pair)
    exit_of(hplm, root, RootFolder(home.root(root)).geometry.num_upper_layers, after)
    files = LabelledFiles(request.train, ladder.held_out)
    material_of(files, hplm, known, target)
    return LadderPlan(request.id, target, after, files, served_stack(home))
