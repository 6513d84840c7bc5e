"""Entries of the registry as plain values, independent of database sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from backends.stack_key import FULL

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class RootEntry:
    name: str
    fingerprint: str
    folder: str


@dataclass(frozen=True)
class DomainEntry:
    """One version of a domain; `folders` are its table and its parents', nearest first."""

    root: str
    name: str
    version: int
    folders: tuple[str, ...]
    metrics: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class DomainNode:
    """One version of a domain and its position in the tree."""

    entry: DomainEntry
    parent: DomainEntry | None
    is_live: bool


@dataclass(frozen=True)
class HplmEntry:
    """One version of an hPLM. `key` names this version for good: it travels in tickets and keys adapter slots."""

    key: int
    id: str
    version: int
    task: str
    labels: tuple[str, ...]
    domain: DomainEntry
    folder: str
    metrics: dict[str, Any] = field(default_factory=dict, compare=False)
    pair: bool = False
    """Whether its texts are pairs."""
    pinned: DomainEntry | None = field(default=None, compare=False)
    """The domain version that updates of this hPLM stay on; it says nothing about the version that serves now."""

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of its ladder that a request may ask for."""
        return tuple(self.metrics.get("levels", (FULL,)))

    @property
    def best_students(self) -> int:
        """The number of its root's students that answer it best; 0 where none does, and none may be more."""
        return int(self.metrics.get("students", {}).get("best", 0))

    def likely_depth(self, level: str) -> float:
        """Return the share of the upper layers that a row is likely to pass, where a request asks for a level."""
        ladder, least = self.metrics.get("ladder"), self.least_depth(level)
        leaving = 1.0 if ladder is None or level in self.levels else ladder["answered_early"]
        return float(1.0 - leaving * (1.0 - least))

    def least_depth(self, level: str) -> float:
        """Return the share of the upper layers after which a row can be answered at the earliest."""
        ladder = self.metrics.get("ladder")
        return 1.0 if ladder is None or level == FULL else float(ladder["after"] / ladder["layers"])

    @property
    def main_metric(self) -> tuple[str, float | None]:
        """Name of its main metric and its value on the dev texts; imported adapters have no value."""
        name = self.metrics.get("main_metric", "accuracy")
        return name, self.metrics.get(f"dev_{name}")


@dataclass(frozen=True)
class Version(Generic[Entry]):
    """One version and its position in the history; times are seconds since the epoch, where they are known."""

    entry: Entry
    is_live: bool
    published_at: float | None
    retired_at: float | None
