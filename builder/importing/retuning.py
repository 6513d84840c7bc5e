"""The start of a tuning that goes on from an imported adapter."""

from __future__ import annotations

import torch

from backends.adapters.head import Head
from backends.storage import file_checksum, json_checksum
from builder.construct.hplm.build import HplmBuild, Start, relabelled
from builder.construct.hplm.tunable import Tuned, new_head, pooled_width, pooling_for, scaled
from builder.importing.candidate import Candidate
from builder.settings.hplm import TuneSettings


def retuning_start(candidate: Candidate, build: HplmBuild, settings: TuneSettings) -> Start:
    """The parts that lie in the upper layers, or new ones if none do, under the folder's head or a new one."""
    torch.manual_seed(settings.seed)
    adapters = candidate.adapters
    if not adapters.parts():
        adapters = settings.recipe.identity(build.root.geometry, build.root.upper())
    head, pooling = _head(candidate, build, settings)
    files = {path.name: file_checksum(path) for path in sorted(candidate.path.iterdir()) if path.is_file()}
    checksum = json_checksum({"files": files, "labels": candidate.given_labels})
    return Start(Tuned(adapters, head, pooling, {}, 0), checksum)


def _head(candidate: Candidate, build: HplmBuild, settings: TuneSettings) -> tuple[Head, str]:
    imported, data = candidate.folder.head, build.data
    if imported is not None and imported.task == data.task:
        if not data.labels:
            return candidate.complete_head(imported), imported.pooling
        if candidate.knows_labels(imported):
            head = relabelled(candidate.complete_head(imported), candidate.labels(imported), data.labels, settings.seed)
            return head, imported.pooling
    pooling = pooling_for(build.objective, settings)
    head = new_head(build.objective.num_outputs, pooled_width(pooling, build.root.geometry.hidden_size))
    return scaled(head, *build.objective.scale), pooling
