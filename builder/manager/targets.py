"""The state of the registry's entry that a job changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from backends.errors import NotFoundError
from backends.registry.entries import DomainEntry, HplmEntry, RootEntry
from backends.registry.registry import Registry
from builder.requests.targets import Target

_PUBLISHING = frozenset(
    {"domain.create", "domain.update", "hplm.create", "hplm.update", "hplm.select", "hplm.import", "students.add"}
)
_SWITCHING = frozenset({"domain.rollback", "domain.delete", "hplm.rollback", "hplm.delete"})
WARNINGS = "warnings"
WITHOUT_LADDER = "without_ladder"
"""The field of a job's result that says why an hPLM with a declared target has no ladder."""
WITHOUT_STUDENTS = "without_students"
"""The field of a job's result that says why students cannot answer, where this version or the one before had some."""


@dataclass(frozen=True)
class RegistryStamp:
    """A target's versions; changes with every publication, rollback and deletion, and with nothing else.

    `last` is the last version that was published, 0 for none; `live` the one that serves. That of a root never changes:
    a job for students that are there already finds them.
    """

    last: int
    live: int | None

    @classmethod
    def of(cls, target: Target, registry: Registry) -> Self:
        entry = _entry(target, registry)
        live = None if entry is None or isinstance(entry, RootEntry) else entry.version
        return cls(target.last_version(registry), live)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote."""
        last, live = (part.partition(" ")[2] for part in text.split(", "))
        return cls(int(last), None if live == "none" else int(live))

    def __str__(self) -> str:
        return f"last {self.last}, live {'none' if self.live is None else self.live}"


def has_landed(kind: str, before: RegistryStamp, now: RegistryStamp) -> bool:
    """Whether the stamps differ as a job of this kind changes them, and not only as somebody else may have."""
    if kind in _PUBLISHING:
        return before.last != now.last
    return kind in _SWITCHING and before.live != now.live


def exists(target: Target, registry: Registry) -> bool:
    return _entry(target, registry) is not None


def described(target: Target, registry: Registry) -> dict[str, Any]:
    """The live version, as a job's result shows it."""
    entry = _entry(target, registry)
    if entry is None:
        return {"target": str(target), "live": False}
    if isinstance(entry, RootEntry):
        return {"target": str(target), "live": True}
    found = {"target": str(target), "live": True, "version": entry.version, "metrics": entry.metrics}
    declared = entry.metrics.get("declared")
    if declared is not None and "ladder" not in entry.metrics:
        found[WITHOUT_LADDER] = f"nothing was selected for {declared['target']} yet; hplm.select does it"
    return found


def _entry(target: Target, registry: Registry) -> RootEntry | DomainEntry | HplmEntry | None:
    try:
        return target.entry(registry)
    except NotFoundError:
        return None
