"""Whether the roots of a home can be cut as an export wants it, and fit into its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from backends.engine.memory_sizes import slots_bytes
from backends.engine.settings import EngineSettings
from backends.engine.stage_cuts import StageCuts
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from backends.stack_key import STUDENTS, StackKey
from backends.wire import EARLY
from builder.export.settings import ExportSettings


def require_cuts(home: Home, registry: Registry, settings: ExportSettings, report: Callable[[str], None]) -> None:
    """Check what servers will check when they load the roots; report which answers there will not be.

    Raises:
        DeviceMemoryError: The roots do not fit.
        InvalidArgumentError: A root has fewer layers than stages.
    """
    device = "cuda:0" if settings.device == "gpu" and torch.cuda.is_available() else "cpu"
    engine = EngineSettings.from_model(ModelSettings(home, settings.upper_parameters), device)
    cuts = StageCuts(home, engine)
    hplms = registry.hplms()
    for entry in registry.roots():
        folders = [home.path / hplm.folder for hplm in hplms if hplm.domain.root == entry.name]
        slots = slots_bytes(folders, engine.stack.num_slots - 1, engine.precision.states)
        cuts.cut(StackKey(entry.name), RootFolder(home.path / entry.folder), slots)
    with_students = sorted({hplm.domain.root for hplm in hplms if hplm.students is not None})
    if with_students and settings.stages > 1:
        report(f"students are not served with --stages: requests for those of {', '.join(with_students)} are rejected")
    for name in with_students if settings.stages == 1 else []:
        _take_students(home, cuts, name, [hplm for hplm in hplms if hplm.domain.root == name])
    with_ladders = [hplm.id for hplm in hplms if EARLY in hplm.levels]
    if with_ladders and settings.stage_models:
        report(f"all layers answer with --stage-models: {len(with_ladders)} hPLMs have levels that are not served")


def _take_students(home: Home, cuts: StageCuts, root: str, hplms: Sequence[HplmEntry]) -> None:
    """Take the memory of a root's students, where it has a set that some of its hPLMs go with."""
    students = read_students(RootFolder(home.root(root)))
    if students is None:
        return
    key = StackKey(root, STUDENTS, edition=students.fingerprint)
    if own := [home.path / hplm.folder for hplm in hplms if key in hplm.stacks]:
        cuts.take_students(key, students, own)
