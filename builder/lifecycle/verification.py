"""Whether the roots, tables and hPLMs that the registry names lie on the disk as they were written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from backends.adapters.bank import read_artifact
from backends.adapters.ladder import read_ladder
from backends.adapters.student_adapters import read_student_adapters
from backends.errors import CorruptFileError, HplmError
from backends.home import Home
from backends.lower.encoder import has_own_layers, verify_layers
from backends.plot.table import Table
from backends.registry.entries import DomainEntry, HplmEntry, RootEntry
from backends.registry.registry import Registry
from backends.root.int8_file import read_fidelity, read_smoothing
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from backends.wire import EARLY
from builder.lifecycle.holds import unheld
from builder.lifecycle.leftovers import leftovers
from builder.locks import no_build_begins
from builder.progress import Report, Step
from builder.registry_check import registry_state

_REGISTRY = "the registry"
_PHASE = "read and compare"
_PRETRAINED = "pretrain_steps"
"""A metric of versions with lower layers of their own."""
_Reading = Callable[[Path], None]


@dataclass(frozen=True)
class Damage:
    """A folder, relative to the home, or the registry, and its damage."""

    folder: str
    complaint: str


@dataclass(frozen=True)
class Verification:
    """The findings of one reading; `unfinished` is what interrupted builds have left, relative to the home."""

    num_folders: int
    damaged: tuple[Damage, ...]
    unfinished: tuple[str, ...]


def verify_home(home: Home, registry: Registry, report: Report) -> Verification:
    """Read every root, table and hPLM once, live or kept, and compare it with its checksums and with the registry."""
    damaged = list(_damage_of_registry(home))
    readings = dict(_readings(registry))
    for number, (folder, read) in enumerate(readings.items(), start=1):
        complaint = _complaint(read, home.path / folder)
        if complaint is not None and folder in registry.known_folders():  # and not collected meanwhile
            damaged.append(Damage(folder, complaint.replace(f"{home.path}/", "")))
        report(Step(_PHASE, number, len(readings), f"{len(damaged)} damaged" if damaged else ""))
    return Verification(len(readings), tuple(damaged), _unfinished(home, registry))


def _damage_of_registry(home: Home) -> Iterator[Damage]:
    """An SQLite registry with a damaged page can be read elsewhere, until it is not."""
    state = registry_state(home)
    if state.remedy:
        yield Damage(_REGISTRY, f"{state.found}; {state.remedy}".replace(f"{home.path}/", ""))


def _unfinished(home: Home, registry: Registry) -> tuple[str, ...]:
    """Name the remains of builds that do not run."""
    found = []
    with no_build_begins(home):  # to look whether a build runs is to be taken for one
        for item in leftovers(home, registry.known_folders(), untouched_s=0.0):
            with unheld(home, item.target) as free:
                if free:
                    found.append(home.relative(item.path))
    return tuple(found)


def _complaint(read: _Reading, folder: Path) -> str | None:
    try:
        read(folder)
    except (HplmError, OSError) as error:
        return str(error)
    except Exception as error:  # every kind of damage raises another type
        return f"it cannot be read: {type(error).__name__}: {error}"
    return None


def _readings(registry: Registry) -> Iterator[tuple[str, _Reading]]:
    """Folders, and what reads and compares each."""
    roots = {root.name: root for root in registry.roots()}
    for root in roots.values():
        yield root.folder, partial(_read_root, root)
    for node in registry.domain_nodes():
        yield node.entry.folders[0], partial(_read_table, roots[node.entry.root], node.entry)
    for live in registry.hplms():
        for version in registry.hplm_versions(live.id):
            yield version.entry.folder, partial(_read_hplm, roots[live.domain.root], version.entry)


def _read_root(root: RootEntry, folder: Path) -> None:
    read = RootFolder(folder)
    _require("fingerprint", read.fingerprint, root.fingerprint)
    read.verify()
    if (students := read_students(read)) is not None:
        students.verify()
    read_smoothing(folder, read.fingerprint, read.geometry)
    read_fidelity(folder, read.fingerprint)


def _read_table(root: RootEntry, domain: DomainEntry, folder: Path) -> None:
    with Table.open(folder, root.fingerprint) as table:
        _require("table", table.spec.name, domain.label)
        table.verify()
    if has_own_layers(folder) or _PRETRAINED in domain.metrics:
        verify_layers(folder)


def _read_hplm(root: RootEntry, hplm: HplmEntry, folder: Path) -> None:
    artifact = read_artifact(folder, root.fingerprint)
    artifact.require_of(hplm)
    students = read_student_adapters(folder)
    if (0 if students is None else students.best) != hplm.best_students:
        raise CorruptFileError(
            f"it may be answered by {hplm.best_students} students, but it has adapters for "
            f"{0 if students is None else students.best}"
        )
    if students is not None and hplm.students is not None:
        _require("set of students", students.set_fingerprint, hplm.students.edition)
    ladder = read_ladder(folder, root.fingerprint)
    if (ladder is not None) != (EARLY in hplm.levels):
        raise CorruptFileError(f"its levels are {', '.join(hplm.levels)}, but it has {'a' if ladder else 'no'} ladder")


def _require(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise CorruptFileError(f"its {what} is {found!r}, where the registry says {expected!r}")
