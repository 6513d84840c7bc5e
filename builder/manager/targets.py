"""What jobs change: domains and hPLMs, by name, and how far the registry has come with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backends.errors import NotFoundError
from backends.names import check_hplm_id, check_name
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry

_PUBLISHING = frozenset({"domain.create", "domain.update", "hplm.create", "hplm.update", "hplm.import"})
_SWITCHING = frozenset({"domain.rollback", "domain.delete", "hplm.rollback", "hplm.delete"})


@dataclass(frozen=True)
class DomainTarget:
    root: str
    name: str

    def __post_init__(self) -> None:
        check_name(self.root, "root")
        check_name(self.name, "domain")

    def __str__(self) -> str:
        return f"domain:{self.root}/{self.name}"

    @property
    def what(self) -> str:
        return f"domain {self.name!r} of root {self.root!r}"

    def entry(self, registry: Registry) -> DomainEntry:
        return registry.domain(self.root, self.name)

    def last_version(self, registry: Registry) -> int:
        return registry.next_domain_version(self.root, self.name) - 1


@dataclass(frozen=True)
class HplmTarget:
    id: str

    def __post_init__(self) -> None:
        check_hplm_id(self.id)

    def __str__(self) -> str:
        return f"hplm:{self.id}"

    @property
    def what(self) -> str:
        return f"hPLM {self.id!r}"

    def entry(self, registry: Registry) -> HplmEntry:
        return registry.hplm(self.id)

    def last_version(self, registry: Registry) -> int:
        return registry.next_hplm_version(self.id) - 1


Target = DomainTarget | HplmTarget


def stamp(target: Target, registry: Registry) -> str:
    """Changes with every publication, rollback and deletion of the target, and with nothing else."""
    entry = _entry(target, registry)
    live = entry.version if entry else "none"
    return f"last {target.last_version(registry)}, live {live}"


def has_landed(kind: str, before: str, now: str) -> bool:
    """Whether the stamps differ as a job of this kind changes them, and not only as somebody else may have."""
    (last_before, live_before), (last_now, live_now) = before.split(", "), now.split(", ")
    if kind in _PUBLISHING:
        return last_before != last_now
    return kind in _SWITCHING and live_before != live_now


def exists(target: Target, registry: Registry) -> bool:
    return _entry(target, registry) is not None


def described(target: Target, registry: Registry) -> dict[str, Any]:
    """The live version, as a job's result shows it."""
    entry = _entry(target, registry)
    if entry is None:
        return {"target": str(target), "live": False}
    return {"target": str(target), "live": True, "version": entry.version, "metrics": entry.metrics}


def _entry(target: Target, registry: Registry) -> DomainEntry | HplmEntry | None:
    try:
        return target.entry(registry)
    except NotFoundError:
        return None
