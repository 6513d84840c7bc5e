"""The requests that take a builder."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.construct.domain.domains import DomainRequest, DomainUpdate, create_domain, update_domain
from builder.construct.domain.settings import PlotSettings, PretrainSettings
from builder.construct.hplm.dedicated_teacher import DedicatedTeacher
from builder.construct.hplm.hplms import HplmRequest, UpdateRequest, create_hplm, update_hplm
from builder.construct.hplm.settings import TuneSettings
from builder.construct.hplm.teacher_data import Teacher
from builder.construct.tasks.dataset import TaskFiles
from builder.importing.base import Base
from builder.importing.hplms import ImportRequest, Retuning, import_hplm
from builder.manager import requests
from builder.manager.archives import unpack
from builder.manager.naming import called
from builder.manager.performing import Workplace
from builder.manager.requests import (
    CreateDomain,
    CreateHplm,
    DomainTexts,
    ImportHplm,
    Training,
    UpdateDomain,
    UpdateHplm,
)
from builder.manager.uploads import UploadKind

_RETUNING_RATE = 5e-4


def build(at: Workplace, request: CreateDomain | UpdateDomain | CreateHplm | UpdateHplm | ImportHplm) -> None:
    match request:
        case CreateDomain():
            create_domain(at.home, at.registry, _new_domain(at, request), at.report, at.fan_out)
        case UpdateDomain():
            update_domain(at.home, at.registry, _next_domain(at, request), at.report, at.fan_out)
        case CreateHplm():
            teacher = _teacher(at, request, request.root_name)
            create_hplm(at.home, at.registry, _new_hplm(at, request), at.report, teacher)
        case UpdateHplm():
            teacher = _teacher(at, request, at.registry.hplm(request.id).domain.root)
            update_hplm(at.home, at.registry, _next_hplm(at, request), at.report, teacher)
        case ImportHplm():
            with tempfile.TemporaryDirectory(prefix="hplm-import-") as folder, called(Path(folder), "the adapter"):
                import_hplm(at.home, at.registry, _imported(at, request, Path(folder)), at.report)


def _new_domain(at: Workplace, request: CreateDomain) -> DomainRequest:
    return DomainRequest(
        name=request.name,
        root=request.root_name,
        parent=request.parent,
        plot=PlotSettings(theta=request.theta, max_fragments=request.max_fragments),
        **_texts(at, request),
    )


def _next_domain(at: Workplace, request: UpdateDomain) -> DomainUpdate:
    return DomainUpdate(
        name=request.name,
        root=request.root_name,
        parent=request.parent,
        theta=request.theta,
        max_fragments=request.max_fragments,
        keep_learned=request.keep_learned,
        **_texts(at, request),
    )


def _new_hplm(at: Workplace, request: CreateHplm) -> HplmRequest:
    return HplmRequest(
        id=request.id,
        root=request.root_name,
        domain=request.domain,
        task=request.task,
        tune=TuneSettings().changed(request.tune),
        **_training(at, request),
    )


def _next_hplm(at: Workplace, request: UpdateHplm) -> UpdateRequest:
    return UpdateRequest(
        id=request.id,
        domain=request.domain,
        tune=request.tune,
        from_scratch=request.from_scratch,
        labels_may_change=request.labels_may_change,
        force=request.force,
        **_training(at, request),
    )


def _imported(at: Workplace, request: ImportHplm, folder: Path) -> ImportRequest:
    return ImportRequest(
        id=request.id,
        root=request.root_name,
        domain=request.domain,
        folder=unpack(at.uploads.content(request.adapter, UploadKind.ADAPTER), folder),
        labels=None if request.labels is None else tuple(request.labels),
        pair=request.pair,
        base=Base(vouched=request.same_base),
        replace=request.replace,
        retuning=None if request.retune is None else _retuning(at, request.retune),
    )


def _retuning(at: Workplace, wanted: requests.Retuning) -> Retuning:
    train, dev = at.files([wanted.train, wanted.dev], UploadKind.TASK)
    settings = TuneSettings(learning_rate=_RETUNING_RATE).changed(wanted.tune)
    return Retuning(TaskFiles(train, dev, at.file(wanted.test, UploadKind.TASK)), wanted.task, settings)


def _texts(at: Workplace, request: DomainTexts) -> dict[str, Any]:
    return {
        "corpus": at.files(request.corpus, UploadKind.CORPUS),
        "held_out": at.file(request.held_out, UploadKind.CORPUS),
        "pretrain": _pretrain_settings(request),
    }


def _training(at: Workplace, request: Training) -> dict[str, Any]:
    train, dev = at.files([request.train, request.dev], UploadKind.TASK)
    return {"train": train, "dev": dev, "test": at.file(request.test, UploadKind.TASK), "search": request.search}


def _teacher(at: Workplace, request: Training, root: str) -> Teacher | None:
    if request.teacher is None:
        return None
    return DedicatedTeacher(at.home, root, at.file(request.unlabelled, UploadKind.CORPUS))


def _pretrain_settings(request: DomainTexts) -> PretrainSettings | None:
    if request.mlm_steps == 0:
        return None
    settings = PretrainSettings()
    return replace(settings, lower=replace(settings.lower, steps=request.mlm_steps, seed=request.seed))
