"""Entries of the registry as plain values, independent of database sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from backends.errors import InvalidArgumentError
from backends.fields import Fields
from backends.stack_key import FULL, STUDENTS, StackKey
from backends.student_levels import COUNTS, MOST_STUDENTS, student_level

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


PRUNED_BY_ATTENTION: Mapping[str, str] = MappingProxyType({"pruned_by": "attention"})
"""The figure of a ladder whose texts lose words by the score that servers go by."""


@dataclass(frozen=True)
class OfferedStudents:
    """The students that a version has adapters for; its metrics say `{"students": {"set", "best", "depth"}}`.

    Attributes:
        edition: `set`, the fingerprint of the root's set that they are for.
        best: Their number.
        depth: What one of them costs, as a share of the upper layers.
        least: The fewest that the load may leave; `hplm select` adds it where it certifies so many.
    """

    edition: str
    best: int
    depth: float
    least: int = 1

    @classmethod
    def read(cls, offered: Any) -> OfferedStudents | None:
        try:
            read = cls(str(offered["set"]), int(offered["best"]), float(offered["depth"]), int(offered.get("least", 1)))
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        return read if 1 <= read.least <= read.best <= MOST_STUDENTS and read.depth > 0 else None


class Way(NamedTuple):
    """What a row passes where a request asks for a level; shares are of the upper layers.

    Layers that it passes with fewer tokens count as far as it has kept them.

    Attributes:
        stack: Where it begins.
        likely_depth: The share that it is likely to pass.
        kept_tokens: The share of its tokens that it is likely to keep if it goes on at its exit.
        least_depth: The share after which it can be answered, however sure it is; the likely one if it may not settle.
        most_depth: The share that it may pass where the load allows it; the likely one unless it has students.
        exit_depth: The share after which it leaves where it is sure, or settles; all layers where it cannot.
    """

    stack: StackKey
    likely_depth: float
    kept_tokens: float
    least_depth: float
    most_depth: float
    exit_depth: float


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
    _ways: dict[str, Way] = field(default_factory=dict, init=False, compare=False, repr=False)
    """By level; each row asks, and it takes as long as all else that is asked of the registry for it."""

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that a request may ask for."""
        students = self.students
        named = () if students is None else (STUDENTS, *map(student_level, range(1, students.best + 1)))
        return (*self.metrics.get("levels", (FULL,)), *named)

    @property
    def students(self) -> OfferedStudents | None:
        """Its students; None where it has none, or where what its metrics say of them cannot be read."""
        return OfferedStudents.read(self.metrics.get(STUDENTS))

    @property
    def may_settle(self) -> bool:
        """Whether a row that all layers would answer too late may get a doubtful answer of its ladder."""
        return self._declared.get("late") != "reject"

    @property
    def default_deadline_us(self) -> int | None:
        """The deadline of requests that name none, if they have one: after so long."""
        declared = self._declared
        return math.ceil(1000 * declared["deadline_ms"]) if declared.get("default_deadline") else None

    @property
    def _declared(self) -> Mapping[str, Any]:
        """The target that the version was made for; empty if none was declared."""
        declared: Mapping[str, Any] = self.metrics.get("declared") or {}
        return declared

    @property
    def best_students(self) -> int:
        """The number of its root's students that answer it best; 0 where none does, and none may be more."""
        return 0 if self.students is None else self.students.best

    def require_level(self, level: str) -> None:
        """Check that it has a level; it is never answered by another one silently."""
        if level not in self.levels:
            raise InvalidArgumentError(f"hPLM {self.id!r} has no level {level!r}; it has {', '.join(self.levels)}")

    def way(self, level: str) -> Way:
        """Return what rows pass where requests ask for a level, which is one of the wire's.

        Raises:
            InvalidArgumentError: The level is of students, and it has none, or fewer.
        """
        way = self._ways.get(level)
        if way is None:
            way = self._ways[level] = Way(
                self.stack(level),
                self.likely_depth(level),
                self.kept_tokens(level),
                self.least_depth(level),
                self.most_depth(level),
                self.exit_depth(level),
            )
        return way

    def stack(self, level: str) -> StackKey:
        """Return the stack on which a row begins, where a request asks for a level.

        Raises:
            InvalidArgumentError: The level is of students, and it has none, or fewer.
        """
        if not _is_of_students(level):
            return StackKey(self.domain.root)
        self.require_level(level)
        return StackKey(self.domain.root, STUDENTS, edition=self._offered.edition)

    @property
    def stacks(self) -> tuple[StackKey, ...]:
        """All stacks on which its rows may run."""
        full = StackKey(self.domain.root)
        return (full,) if self.students is None else (full, self.stack(STUDENTS))

    def likely_depth(self, level: str) -> float:
        """Return the share of the upper layers that a row is likely to pass, where a request asks for a level.

        Layers that it passes with fewer tokens count as far as it has kept them.
        """
        if _is_of_students(level):
            return self.least_depth(level)
        ladder = self.metrics.get("ladder")
        if ladder is None or level == FULL:
            return 1.0
        early = ladder["after"] / ladder["layers"]
        going_on = 0.0 if level in self.levels else 1.0 - ladder["answered_early"]
        return float(early + going_on * self.kept_tokens(level) * (1.0 - early))

    @property
    def prunes_words(self) -> bool:
        """Whether texts that are not sure enough at their exit go on without some of their words."""
        return self._kept_tokens is not None

    def kept_tokens(self, level: str) -> float:
        """Return the share of its tokens that a row which goes on at its exit is likely to keep."""
        kept = None if level in self.levels or _is_of_students(level) else self._kept_tokens
        return 1.0 if kept is None else kept

    @property
    def _kept_tokens(self) -> float | None:
        """Only a classification prunes: a word that is left out has no tag. Earlier releases went by another score."""
        ladder = self.metrics.get("ladder") or {}
        kept = ladder.get("kept_tokens") if PRUNED_BY_ATTENTION.items() <= ladder.items() else None
        return None if kept is None or self.task != "classification" else float(kept)

    def least_depth(self, level: str) -> float:
        """Return the share of the upper layers after which a row can be answered, however sure it is.

        It is the likely one where the row may not settle.
        """
        if _is_of_students(level):
            return COUNTS.get(level, self._offered.least) * self._offered.depth
        return self.exit_depth(level) if self.may_settle else self.likely_depth(level)

    def exit_depth(self, level: str) -> float:
        """Return the share of the upper layers after which a row leaves that is sure; 1 where none does."""
        ladder = None if _is_of_students(level) else self.metrics.get("ladder")
        return 1.0 if ladder is None or level == FULL else float(ladder["after"] / ladder["layers"])

    def most_depth(self, level: str) -> float:
        """Return the share that a row may pass where the load allows it; `likely_depth` unless it has students."""
        if _is_of_students(level):
            return COUNTS.get(level, self._offered.best) * self._offered.depth
        return self.likely_depth(level)

    @property
    def _offered(self) -> OfferedStudents:
        if self.students is None:
            raise InvalidArgumentError(f"hPLM {self.id!r} has no students; it has {', '.join(self.levels)}")
        return self.students

    @property
    def main_metric(self) -> tuple[str, float | None]:
        """Name of its main metric and its value on the dev texts; imported adapters have no value."""
        name = self.metrics.get("main_metric", "accuracy")
        return name, self.metrics.get(f"dev_{name}")


def readable_metrics(metrics: Fields) -> dict[str, Any]:
    """Return a version's metrics, once those are what servers take them for that they compute with.

    Raises:
        CorruptFileError: One is not.
    """
    if "levels" in metrics:
        metrics.texts("levels")
    if metrics.get("ladder") is not None:
        ladder = metrics.part("ladder")
        ladder.number("answered_early", 0.0, 1.0)
        ladder.number("after", 0.0, ladder.positive("layers"))
        if ladder.get("kept_tokens") is not None:
            ladder.number("kept_tokens", 0.0, 1.0)
    if metrics.get("declared") is not None:
        declared = metrics.part("declared")
        if declared.get("default_deadline"):
            declared.positive("deadline_ms")
    return {name: metrics.value(name) for name in metrics.names()}


def _is_of_students(level: str) -> bool:
    return level == STUDENTS or level in COUNTS


@dataclass(frozen=True)
class Version(Generic[Entry]):
    """One version and its position in the history; times are seconds since the epoch, where they are known."""

    entry: Entry
    is_live: bool
    published_at: float | None
    retired_at: float | None
