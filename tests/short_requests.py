"""Requests with few words: what tests leave out is the least work, where users get the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PrivateAttr

from builder.requests.base import Request
from builder.requests.domains import CreateDomain, UpdateDomain
from builder.requests.hplms import CreateHplm, ImportHplm, UpdateHplm
from builder.requests.roots import AddRoot
from builder.settings.domain import PretrainSettings
from builder.settings.hplm import TuneSettings

Tune = TuneSettings | Mapping[str, Any]
RequestT = TypeVar("RequestT", bound=Request)
_WHOLE: dict[str, Any] = {"theta": 1.0, "max_fragments": None, "mlm_steps": 0}
NOTHING: Mapping[str, Any] = {}


class PacedDomain(CreateDomain):
    """A domain whose lower layers learn at another pace than users can ask for."""

    _pace: PretrainSettings = PrivateAttr(default_factory=PretrainSettings)

    @property
    def pretrain(self) -> PretrainSettings:
        return self._pace


class PacedUpdate(UpdateDomain):
    """An update whose lower layers learn at another pace than users can ask for."""

    _pace: PretrainSettings = PrivateAttr(default_factory=PretrainSettings)

    @property
    def pretrain(self) -> PretrainSettings:
        return self._pace


def new_root(
    name: str, source: str, lower: int, corpus: Sequence[Path], max_tokens: int = 128, n: int = 3, **more: Any
) -> AddRoot:
    return AddRoot(name=name, source=source, lower=lower, corpus=list(corpus), max_tokens=max_tokens, n=n, **more)


def new_domain(
    name: str,
    root: str,
    corpus: Sequence[Path],
    parent: str = "general",
    pace: PretrainSettings | None = None,
    **more: Any,
) -> CreateDomain:
    """A domain that keeps every fragment and, without a `pace`, the root's own lower layers."""
    fields = {"name": name, "root": root, "corpus": list(corpus), "parent": parent, **_WHOLE, **more}
    if pace is None:
        return CreateDomain(**fields)
    request = PacedDomain(**fields)
    request._pace = pace
    return request


def next_domain(
    name: str, root: str, corpus: Sequence[Path], pace: PretrainSettings | None = None, **more: Any
) -> UpdateDomain:
    """A domain's next version, without a `pace` without pretraining."""
    fields = {"name": name, "root": root, "corpus": list(corpus), "mlm_steps": 0, **more}
    if pace is None:
        return UpdateDomain(**fields)
    request = PacedUpdate(**fields)
    request._pace = pace
    return request


def new_hplm(
    id: str, root: str, domain: str, train: Path, dev: Path, test: Path | None = None, tune: Tune = NOTHING, **more: Any
) -> CreateHplm:
    files = {"train": train, "dev": dev, "test": test}
    return CreateHplm(id=id, root=root, domain=domain, **files, tune=_changes(tune), **more)  # type: ignore[arg-type]


def next_hplm(
    id: str, train: Path, dev: Path, test: Path | None = None, tune: Tune = NOTHING, **more: Any
) -> UpdateHplm:
    return UpdateHplm(id=id, train=train, dev=dev, test=test, tune=_changes(tune), **more)


def adapter_import(
    id: str, root: str, domain: str | None, folder: Path, labels: Sequence[str] | None, **more: Any
) -> ImportHplm:
    named = None if labels is None else list(labels)
    return ImportHplm(id=id, root=root, domain=domain, adapter=folder, labels=named, **more)


def changed(request: RequestT, **changes: Any) -> RequestT:
    """The request with other values, checked like the first."""
    return type(request)(**{**dict(request), **changes})


def _changes(tune: Tune) -> dict[str, Any]:
    return asdict(tune) if isinstance(tune, TuneSettings) else dict(tune)
