"""The targets that requests change: roots' students, domains and hPLMs, by name."""

from __future__ import annotations

from dataclasses import dataclass

from backends.names import check_hplm_id, check_name
from backends.registry.entries import DomainEntry, HplmEntry, RootEntry
from backends.registry.registry import Registry


@dataclass(frozen=True)
class RootTarget:
    """A root, of which only the students ever change; these have no versions."""

    root: str

    def __post_init__(self) -> None:
        check_name(self.root, "root")

    def __str__(self) -> str:
        return f"root:{self.root}"

    @property
    def what(self) -> str:
        """The target in messages."""
        return f"root {self.root!r}"

    def entry(self, registry: Registry) -> RootEntry:
        return registry.root(self.root)

    def last_version(self, registry: Registry) -> int:
        return 0


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
        """The target in messages."""
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
        """The target in messages."""
        return f"hPLM {self.id!r}"

    def entry(self, registry: Registry) -> HplmEntry:
        return registry.hplm(self.id)

    def last_version(self, registry: Registry) -> int:
        return registry.next_hplm_version(self.id) - 1


Target = RootTarget | DomainTarget | HplmTarget
