"""`hplm import`: an adapter of another library becomes a version of an hPLM, unchanged or tuned on for this root."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from backends.adapters.bank import HplmArtifact
from backends.errors import ConflictError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.names import names_version
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.hplm.build import HplmBuild
from builder.construct.hplm.hplms import building_hplm, publish_artifact, publish_build
from builder.construct.tasks.dataset import TaskFiles, read_task
from builder.construct.tasks.trained_texts import UNKNOWN
from builder.construct.training.device import training_device
from builder.importing.base import Base, require_same_base
from builder.importing.candidate import Candidate
from builder.importing.folder import read_folder
from builder.importing.modules import require_upper, stack_modules
from builder.importing.retuning import retuning_start
from builder.levels.target import DECLARED
from builder.progress import Report
from builder.requests.domains import GENERAL_DOMAIN
from builder.requests.hplms import ImportHplm, Retuning
from builder.settings.hplm import TuneSettings
from builder.settings.root import TRAINED_PARTS

LOGGER = logging.getLogger(__name__)
_RETUNING_RATE = 5e-4


def import_hplm(
    home: Home,
    registry: Registry,
    request: ImportHplm,
    report: Report,
    base_model: Path | None = None,
    is_uploaded: bool = False,
) -> HplmEntry:
    """Read, check and publish a PEFT or AdapterHub folder; nothing is written unless all of it can be served.

    `base_model` is the folder of the pretrained model that the adapter was trained on, where it is at hand.
    Of one that `is_uploaded` only the name of its base is compared, since it may name any folder of this machine.
    """
    with building_hplm(home, request.id) as hold:
        replaces = _replaced_version(registry, request)
        domain = _domain(registry, request)
        hold.will_read(domain.folders)
        candidate = _candidate(home, request, Base(base_model, request.same_base, is_uploaded))
        if request.retune is not None:
            return _retune(home, registry, request, request.retune, domain, candidate, replaces, report)
        artifact = _as_it_is(request, domain, candidate)
        figures = {"imported": candidate.folder.origin["format"], **_declared(registry, request, artifact.task)}
        pinned = _pinned(request)
        return publish_artifact(home, registry, artifact, domain, figures, replaces=replaces, pinned=pinned)


def _replaced_version(registry: Registry, request: ImportHplm) -> int | None:
    """The live version that the import replaces; None where it makes an hPLM."""
    exists = registry.has_hplm(request.id)
    registry.require_room(request.id)
    if exists and not request.replace:
        raise ConflictError(f"hPLM {request.id!r} exists already; --replace makes the import its next version")
    if not request.replace:
        return None
    if not exists:
        raise NotFoundError(f"hPLM {request.id!r} does not exist, so there is nothing to replace")
    live = registry.hplm(request.id)
    if live.domain.root != request.root_name:
        raise InvalidArgumentError(
            f"hPLM {request.id!r} is of root {live.domain.root!r}, so an import into root {request.root_name!r} "
            "cannot be its next version"
        )
    return live.version


def _declared(registry: Registry, request: ImportHplm, task: str) -> dict[str, Any]:
    """Return the target that the version before was made for, which the tenant goes on to have."""
    live = registry.hplm(request.id) if request.replace else None
    return {DECLARED: live.metrics[DECLARED]} if live and live.task == task and DECLARED in live.metrics else {}


def _domain(registry: Registry, request: ImportHplm) -> DomainEntry:
    if request.domain is None and request.replace:
        live = registry.hplm(request.id)
        return live.pinned or registry.domain(request.root_name, live.domain.name)
    return registry.find_domain(request.root_name, request.domain or GENERAL_DOMAIN)


def _pinned(request: ImportHplm) -> bool | None:
    """Return whether to pin, as an update does: a named version is pinned, no name leaves the pin unchanged (None)."""
    return None if request.domain is None else names_version(request.domain)


def _candidate(home: Home, request: ImportHplm, base: Base) -> Candidate:
    root = RootFolder(home.root(request.root_name))
    folder = read_folder(request.adapter)
    adapters = stack_modules(folder.modules, root.geometry)
    compared = require_same_base(folder.base, root.manifest, base)
    labels = None if request.labels is None else tuple(request.labels)
    return Candidate(home, request.adapter, root, folder, adapters, labels, base, compared)


def _as_it_is(request: ImportHplm, domain: DomainEntry, candidate: Candidate) -> HplmArtifact:
    folder, root = candidate.folder, candidate.root
    require_upper(folder.modules, root.geometry, folder.upper_only)
    if "upper" in root.manifest.origin.get(TRAINED_PARTS, ()):
        LOGGER.warning(
            "root %s has upper layers of its own, so the adapter will not answer exactly as it did", request.root
        )
    if folder.head is None:
        raise InvalidArgumentError(
            f"{request.adapter} holds no head; save the adapter with its head, or tune one with --retune, --train, "
            "--dev"
        )
    return HplmArtifact(
        hplm=request.id,
        root_fingerprint=root.fingerprint,
        task=folder.head.task,
        labels=candidate.labels(folder.head),
        pooling=folder.head.pooling,
        adapters=candidate.adapters,
        head=candidate.complete_head(folder.head),
        pair=request.pair,
        stored_dtype="fp32",
        origin={**candidate.origin, "domain": domain.label},
    )


def _retune(
    home: Home,
    registry: Registry,
    request: ImportHplm,
    retuning: Retuning,
    domain: DomainEntry,
    candidate: Candidate,
    replaces: int | None,
    report: Report,
) -> HplmEntry:
    settings = TuneSettings(learning_rate=_RETUNING_RATE).changed(retuning.tune)
    files = TaskFiles(retuning.train, retuning.dev, retuning.test)
    head = candidate.folder.head
    data = read_task(files, retuning.task or (head.task if head else candidate.folder.task))
    version = registry.next_hplm_version(request.id)
    build = HplmBuild(home, domain, request.id, version, files, data, report, training_device(retuning.device))
    start = retuning_start(candidate, build, settings)
    trial, figures = build.measured(build.tune(settings, 1, start))
    figures |= {"imported": candidate.folder.origin["format"], **_declared(registry, request, data.task)}
    artifact = build.artifact(trial, candidate.origin)
    return publish_build(
        registry, build, artifact, figures, replaces=replaces, pinned=_pinned(request), made_before=UNKNOWN
    )
