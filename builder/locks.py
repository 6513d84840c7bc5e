"""One build at a time per artefact: an advisory lock that goes with its process, however that ends.

While it is held, the lock's file says which domain versions the build reads, so that `hplm gc` leaves those to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.errors import ConflictError
from backends.storage import disk_full_is_an_error, locked


@dataclass(frozen=True)
class Hold:
    """The lock of a running build."""

    path: Path

    def will_read(self, folders: Iterable[str]) -> None:
        """Say which folders of domain versions this build reads and no others; they are relative to the home."""
        with disk_full_is_an_error(self.path):
            self.path.write_text(json.dumps(sorted(folders)), encoding="utf-8")


@contextmanager
def exclusive(target: Path, what: str) -> Iterator[Hold]:
    """Hold the build lock of `target` (which need not exist); somebody else's hold is an error."""
    lock_path = target.with_name(f".{target.name}.lock")
    with locked(lock_path, _open_lock, f"{what} is being built by another process"):
        try:
            os.truncate(lock_path, 0)  # what a killed build read is not what this one reads
            yield Hold(lock_path)
        finally:
            # While it is still held: whoever opened it before finds out and takes a new one.
            lock_path.unlink(missing_ok=True)


def is_held(lock_path: Path) -> bool:
    try:
        with locked(lock_path, _open_existing, "held"):
            return False
    except ConflictError:
        return True
    except FileNotFoundError:
        return False


def folders_read(lock_path: Path) -> list[str] | None:
    """What a build has said that it reads; None where it has not said it yet."""
    try:
        folders: list[str] = json.loads(lock_path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return folders


def _open_lock(path: Path) -> int:
    with disk_full_is_an_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _open_existing(path: Path) -> int:
    return os.open(path, os.O_RDWR)
