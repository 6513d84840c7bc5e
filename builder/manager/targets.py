"""How far the registry has come with what a job changes."""

from __future__ import annotations

from typing import Any

from backends.errors import NotFoundError
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry
from builder.requests.targets import Target

_PUBLISHING = frozenset({"domain.create", "domain.update", "hplm.create", "hplm.update", "hplm.import"})
_SWITCHING = frozenset({"domain.rollback", "domain.delete", "hplm.rollback", "hplm.delete"})


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
