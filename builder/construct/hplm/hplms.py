"""`hplm create` and `hplm update`: labelled texts become an hPLM in the bank, live once its tuning is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import torch

from backends.adapters.bank import HplmArtifact, read_artifact, write_artifact
from backends.adapters.recipe import AdapterRecipe
from backends.errors import (
    ConflictError,
    FingerprintMismatchError,
    NotFoundError,
    TrainingDataError,
    WorseError,
)
from backends.home import Home
from backends.names import names_version
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry
from backends.storage import file_checksum, publishing
from backends.wire import EARLY
from builder.construct.hplm.build import HplmBuild, Start, relabelled
from builder.construct.hplm.search import Trial
from builder.construct.hplm.teacher_data import Teacher
from builder.construct.hplm.tunable import Tuned
from builder.construct.tasks.dataset import TaskData, TaskFiles, read_task
from builder.construct.tasks.paired import paired_difference
from builder.construct.tasks.trained_texts import MadeWith, TrainedTexts
from builder.construct.training.device import training_device
from builder.executors.mapping import ParallelMap, map_here
from builder.locks import Hold, exclusive
from builder.progress import Report, Step
from builder.requests.hplms import CreateHplm, Training, UpdateHplm
from builder.settings.hplm import TEACHING, Pooling, TuneSettings

_EARLY_TUNING = "early_tuning"
"""The part of an hPLM's origin that says whether an early tuning was requested: true, false, or nothing was said."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def create_hplm(
    home: Home,
    registry: Registry,
    request: CreateHplm,
    report: Report,
    teacher: Teacher | None = None,
    noted: Mapping[str, Any] = _NOTHING,
    fan_out: ParallelMap = map_here,
) -> HplmEntry:
    """Tune and publish the first version of an hPLM; a killed one goes on at its last epoch.

    `teacher` stands in for the one that the request names; `noted` joins the version's figures; where `fan_out` spans a
    cluster, the trials of a search run there side by side.
    """
    device = training_device(request.device)
    teacher = teacher or _requested_teacher(home, request, request.root_name, device)
    settings = TuneSettings.defaults(teacher is not None).changed(request.tune)
    with building_hplm(home, request.id) as hold:
        if registry.has_hplm(request.id):
            raise ConflictError(f"hPLM {request.id!r} exists already; 'hplm update' makes a new version of it")
        registry.require_room(request.id)
        files = TaskFiles(request.train, request.dev, request.test)
        data = read_task(files, request.task)
        domain = registry.find_domain(request.root_name, request.domain)
        version = registry.next_hplm_version(request.id)
        hold.will_read(domain.folders)
        build = HplmBuild(home, domain, request.id, version, files, data, report, device)
        trials = build.tune(settings, request.search, teacher=teacher, fan_out=fan_out)
        trial, figures = build.measured(trials, request.tunes_early)
        artifact = build.artifact(trial, {_EARLY_TUNING: request.early})
        pinned = names_version(request.domain)
        return publish_build(registry, build, artifact, {**figures, **noted}, pinned=pinned)


def update_hplm(
    home: Home,
    registry: Registry,
    request: UpdateHplm,
    report: Report,
    noted: Mapping[str, Any] = _NOTHING,
    fan_out: ParallelMap = map_here,
) -> HplmEntry:
    """Tune the next version, from the live one on, and publish it unless it is worse; meanwhile the old one serves.

    `noted` and `fan_out`: see `create_hplm`.
    """
    device = training_device(request.device)
    with building_hplm(home, request.id) as hold:
        if not registry.has_hplm(request.id):
            raise NotFoundError(f"hPLM {request.id!r} does not exist; 'hplm create' makes it")
        live = registry.hplm(request.id)
        teacher = _requested_teacher(home, request, live.domain.root, device)
        files = TaskFiles(request.train, request.dev, request.test)
        before = MadeWith.read(home.path / live.folder)
        data = with_live_leaks(read_task(files, live.task), before.trained)
        require_same_kind(live, data, files)
        _require_same_labels(live, data, files, request.labels_may_change)
        domain, pinned = _next_domain(registry, live, request.domain)
        version = registry.next_hplm_version(request.id)
        hold.will_read({*domain.folders, *live.domain.folders})
        build = HplmBuild(home, domain, request.id, version, files, data, report, device)
        artifact = read_artifact(home.path / live.folder, build.root.fingerprint)
        settings, start = _next_start(home, live, artifact, data, request, teacher is not None)
        early = artifact.origin.get(_EARLY_TUNING) if request.early is None else request.early
        tunes_early = (request.ladder is not None or EARLY in live.levels) if early is None else bool(early)
        trial, figures = build.measured(build.tune(settings, request.search, start, teacher, fan_out), tunes_early)
        figures |= {**_compared(build, trial, live, artifact, request.force), **noted}
        return publish_build(
            registry,
            build,
            build.artifact(trial, {_EARLY_TUNING: early}),
            figures,
            replaces=live.version,
            pinned=pinned,
            made_before=before if start else None,
        )


def live_settings(artifact: HplmArtifact, is_taught: bool) -> TuneSettings:
    """Return the settings of a version's tuning; of one that was not tuned here, those that fit its adapters.

    What was chosen with a teacher in mind is not for a next version without one, nor the other way round: that one has
    the default epochs, as a teacher's texts are several times as many.
    """
    known = {field.name for field in fields(TuneSettings)}
    if bool(artifact.origin.get("teacher")) != is_taught:
        known -= {*TEACHING, "epochs"}
    noted = {name: value for name, value in artifact.origin.get("tune", {}).items() if name in known}
    if artifact.pooling in get_args(Pooling):  # an imported head has that of its library, whatever was noted
        noted["pooling"] = artifact.pooling
    return replace(TuneSettings.defaults(is_taught), recipe=AdapterRecipe.of(artifact.adapters)).changed(noted)


def next_settings(artifact: HplmArtifact, request: UpdateHplm, is_taught: bool) -> tuple[TuneSettings, bool]:
    """Return the settings of an update, and whether it goes on from the live weights."""
    before = live_settings(artifact, is_taught)
    settings = before.changed(request.tune)
    keeps_adapters = (settings.recipe, settings.pooling) == (before.recipe, before.pooling)
    return settings, keeps_adapters and not request.from_scratch


def publish_build(
    registry: Registry,
    build: HplmBuild,
    artifact: HplmArtifact,
    figures: Mapping[str, Any],
    *,
    replaces: int | None = None,
    pinned: bool | None = None,
    made_before: MadeWith | None = None,
) -> HplmEntry:
    """Publish the version that a build has made, and remove its checkpoints; `publish_artifact` has the arguments."""
    made_with = build.made_with
    entry = publish_artifact(
        build.home,
        registry,
        artifact,
        build.domain,
        figures,
        version=build.version,
        replaces=replaces,
        pinned=pinned,
        made_with=made_with.joined(made_before) if made_before else made_with,
    )
    build.forget_checkpoints()
    return entry


def publish_artifact(
    home: Home,
    registry: Registry,
    artifact: HplmArtifact,
    domain: DomainEntry,
    figures: Mapping[str, Any],
    *,
    version: int | None = None,
    replaces: int | None = None,
    pinned: bool | None = None,
    made_with: TrainedTexts | MadeWith | None = None,
) -> HplmEntry:
    """Write an hPLM's next version into the bank and make it live; to be called under `building_hplm`.

    `version` is the next version at the start of the work: a version published meanwhile wins. `replaces` and
    `pinned`: see `Registry.publish_hplm`. `made_with` is what its next update warns of when it meets it in a dev file,
    and selections in held-out texts.
    """
    _require_same_root(registry, artifact, domain)
    version = version or registry.next_hplm_version(artifact.hplm)
    registry.require_next_hplm_version(artifact.hplm, version)
    target = home.bank(domain.root, artifact.hplm, version)
    registry.require_unknown_folder(home.relative(target))
    with publishing(target) as folder:
        write_artifact(folder, artifact)
        if made_with is not None:
            made_with.write(folder)
    metrics = {**figures, "size_bytes": sum(path.stat().st_size for path in target.iterdir())}
    return registry.publish_hplm(
        artifact.hplm,
        domain,
        artifact.task,
        artifact.labels,
        home.relative(target),
        metrics,
        pair=artifact.pair,
        version=version,
        replaces=replaces,
        pinned=pinned,
    )


def publish_linked(
    home: Home, registry: Registry, live: HplmEntry, write: Callable[[Path], None], figures: Mapping[str, Any]
) -> HplmEntry:
    """Publish the next version, with the live one's weights and what `write` adds to them; under `building_hplm`.

    Its files are links to the live one's, but for those that `write` writes, as always by renaming.
    """
    version = registry.next_hplm_version(live.id)
    target = home.bank(live.domain.root, live.id, version)
    registry.require_unknown_folder(home.relative(target))
    with publishing(target) as folder:
        for path in (home.path / live.folder).iterdir():
            _link_or_copy(path, folder / path.name)
        write(folder)
    size_bytes = sum(path.stat().st_size for path in target.iterdir())
    return registry.publish_hplm(
        live.id,
        live.domain,
        live.task,
        live.labels,
        home.relative(target),
        {**live.metrics, **figures, "size_bytes": size_bytes},
        pair=live.pair,
        version=version,
        replaces=live.version,
    )


def _link_or_copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # some file systems have no hard links
        shutil.copy2(path, target)


def _require_same_root(registry: Registry, artifact: HplmArtifact, domain: DomainEntry) -> None:
    root = registry.root(domain.root)
    if artifact.root_fingerprint != root.fingerprint:
        raise FingerprintMismatchError(
            f"hPLM {artifact.hplm!r} was made for root {artifact.root_fingerprint}, but domain {domain.label} is of "
            f"root {root.name!r} ({root.fingerprint})"
        )


def _requested_teacher(home: Home, request: Training, root: str, device: torch.device) -> Teacher | None:
    if request.teacher is None:
        return None
    from builder.construct.hplm.dedicated_teacher import DedicatedTeacher  # here, because it loads transformers

    return DedicatedTeacher(home, root, request.unlabelled, device=device)


def building_hplm(home: Home, hplm: str) -> AbstractContextManager[Hold]:
    """IDs belong to the whole home, so one lock holds for all roots."""
    return exclusive(home, home.path / "bank" / hplm.replace("/", "--"), f"hPLM {hplm!r}")


def _next_domain(registry: Registry, live: HplmEntry, wanted: str | None) -> tuple[DomainEntry, bool | None]:
    """The domain version to tune on, and whether the hPLM is to stay on it; None leaves that as it is."""
    if wanted is None:
        return registry.domain_for_update(live.id), None
    return registry.find_domain(live.domain.root, wanted), names_version(wanted)


def require_same_kind(live: HplmEntry, data: TaskData, files: TaskFiles) -> None:
    if live.pair != data.pair:
        reads, holds = ("pairs of texts", "single texts") if live.pair else ("single texts", "pairs of texts")
        raise TrainingDataError(f"hPLM {live.id!r} reads {reads}, but {files.train} holds {holds}")


def with_live_leaks(data: TaskData, live: TrainedTexts) -> TaskData:
    """Counts also the texts that the live version learned from: they flatter it, and what goes on from it."""
    leaks = {"dev_in_live_train": live.num_among(data.dev), "test_in_live_train": live.num_among(data.test)}
    return replace(data, leaks={**data.leaks, **leaks})


def _require_same_labels(live: HplmEntry, data: TaskData, files: TaskFiles, may_change: bool) -> None:
    added = [label for label in data.labels if label not in live.labels]
    removed = [label for label in live.labels if label not in data.labels]
    if may_change or not (added or removed):
        return
    changes = [
        f"{what} {', '.join(map(repr, which))}" for what, which in (("added", added), ("removed", removed)) if which
    ]
    raise TrainingDataError(
        f"{files.train} changes the labels of {live.id!r}: {'; '.join(changes)}; --labels-may-change allows that"
    )


def _next_start(
    home: Home, live: HplmEntry, artifact: HplmArtifact, data: TaskData, request: UpdateHplm, is_taught: bool
) -> tuple[TuneSettings, Start | None]:
    """The settings, and the live weights, unless the new version's adapters are to be others."""
    settings, goes_on = next_settings(artifact, request, is_taught)
    if not goes_on:
        return settings, None
    tuned = _tuned(artifact)
    if data.labels != artifact.labels:
        tuned = replace(tuned, head=relabelled(tuned.head, artifact.labels, data.labels, settings.seed))
    return settings, Start(tuned, file_checksum(home.path / live.folder / "manifest.json"))


def _tuned(artifact: HplmArtifact) -> Tuned:
    return Tuned(artifact.adapters, artifact.head, artifact.pooling, {}, 0)


def _compared(build: HplmBuild, trial: Trial, live: HplmEntry, artifact: HplmArtifact, force: bool) -> dict[str, Any]:
    """Compare both versions on the new dev file, the live one as it serves now.

    Raises:
        WorseError: The new one is worse, and nobody forces it.
    """
    objective = build.objective
    before = build.dev_terms(_tuned(artifact), artifact.labels, live.domain)
    now = build.dev_terms(trial.tuned, build.data.labels, build.domain)
    difference = paired_difference(now, before, objective.score)
    metric, score = objective.main_metric, round(float(objective.score(before.sum(axis=0))), 4)
    finding = f"{metric} {difference} on the {len(now)} dev texts against version {live.version}"
    if difference.verdict == "worse" and not force:
        raise WorseError(
            f"the new version of {live.id!r} is worse: {finding}, which has {score:.4f}; nothing was published, and "
            "--force publishes it all the same"
        )
    build.report(Step(f"compare with version {live.version}", 1, 1, f"{difference.verdict}: {metric} {difference}"))
    return {
        "previous_version": live.version,
        f"previous_dev_{metric}": score,
        "compared": f"{difference.verdict}: {finding}",
    }
