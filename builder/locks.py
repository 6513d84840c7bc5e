"""One build at a time per artefact: a lock that goes with its process, however that ends.

While it is held, its file says which domain versions the build reads, so that `hplm gc` keeps them. A collection holds
`no_build_begins` meanwhile: a build finds the registry as it was left, or the collection finds the build.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.errors import ConflictError
from backends.file_lock import locked, locked_in_turn
from backends.home import Home
from backends.storage import disk_full_is_an_error
from builder.clock_mark import note_clock

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hold:
    """The lock of a running build."""

    path: Path

    def will_read(self, folders: Iterable[str]) -> None:
        """Say which folders of domain versions this build reads and no others; they are relative to the home."""
        with disk_full_is_an_error(self.path):
            self.path.write_text(json.dumps(sorted(folders)), encoding="utf-8")


@contextmanager
def exclusive(home: Home, target: Path, what: str) -> Iterator[Hold]:
    """Hold the build lock of `target` (which need not exist); raise ConflictError where another process has it."""
    with ExitStack() as held:
        with disk_full_is_an_error(target), no_build_begins(home):
            held.enter_context(not_built(target, f"{what} is being built by another process"))
            note_clock(home)
            os.truncate(lock_path(target), 0)  # what a killed build read is not what this one reads
        yield Hold(lock_path(target))


@contextmanager
def made_in_turn(target: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the build lock of what several builds share and the first makes; `on_wait` as for `locked_in_turn`."""
    with locked_in_turn(lock_path(target), on_wait):
        Hold(lock_path(target)).will_read(())  # the build around it says what it reads
        yield


@contextmanager
def no_build_begins(home: Home) -> Iterator[None]:
    """Let builds that are about to begin wait; those that have begun go on."""
    with locked_in_turn(home.path / ".beginning.lock", lambda: LOGGER.info("waiting for a collection of garbage")):
        yield


def not_built(target: Path, conflict: str) -> AbstractContextManager[None]:
    """Keep builds of `target` away; raise ConflictError(`conflict`) where one is at work."""
    return locked(lock_path(target), conflict)


def lock_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def is_held(path: Path) -> bool:
    """Look whether a lock is held. The caller has `no_build_begins`: to look is to hold it for a moment."""
    try:
        with locked(path, "held"):
            return False
    except ConflictError:
        return True


def folders_read(path: Path) -> list[str] | None:
    """Read which folders a build has said that it reads; None where it has not said it yet."""
    try:
        folders = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return folders if isinstance(folders, list) and all(isinstance(one, str) for one in folders) else None
