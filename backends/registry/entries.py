"""What the registry says, as plain values: nothing here is tied to a database session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
