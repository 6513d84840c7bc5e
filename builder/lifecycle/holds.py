"""Builds at work and what they read, by the locks that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.errors import ConflictError
from backends.home import Home
from builder.locks import folders_read, is_held, not_built


@contextmanager
def unheld(home: Home, target: Path) -> Iterator[bool]:
    """Keep builds away from a folder of the home meanwhile; False where one is at work on it."""
    with ExitStack() as stack:
        try:
            for guard in _guards(home, target):
                stack.enter_context(not_built(guard, str(guard)))
        except ConflictError:
            stack.close()
            yield False
        else:
            yield True


@dataclass(frozen=True)
class RunningBuilds:
    """The folders of domain versions that builds read now; not `all_known` while one has yet to say what it reads."""

    folders: frozenset[str]
    all_known: bool


def running_builds(home: Home) -> RunningBuilds:
    """Say what the builds on this home read, live or not; the caller has `no_build_begins`."""
    rooms = [home.path / "roots", home.path / "bank", *(home.path / "plots").glob("*")]
    read = [folders_read(path) for room in rooms for path in room.glob(".*.lock") if is_held(path)]
    known = [folders for folders in read if folders is not None]
    return RunningBuilds(frozenset(folder for folders in known for folder in folders), len(known) == len(read))


def _guards(home: Home, target: Path) -> list[Path]:
    """The targets whose build locks guard `target`: its own, its name's in any version, its root's."""
    names = dict.fromkeys([target.name, target.name.partition("@")[0]])
    guards = [target.with_name(name) for name in names]
    room, *rest = target.relative_to(home.path).parts
    if room == "bank" and len(rest) > 1:
        guards += [home.path / "bank" / name for name in names]
    if room in ("roots", "plots") and len(rest) > 1:
        guards.append(home.path / "roots" / rest[0])
    return guards
