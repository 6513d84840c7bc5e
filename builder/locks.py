"""One build at a time per artefact: an advisory lock that goes with its process, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.errors import ConflictError
from backends.storage import disk_full_is_an_error


@contextmanager
def exclusive(target: Path, what: str) -> Iterator[None]:
    """Hold the build lock of `target` (which need not exist); somebody else's hold is an error."""
    lock_path = target.with_name(f".{target.name}.lock")
    with disk_full_is_an_error(lock_path):
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        file = lock_path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(f"{what} is being built by another process") from error
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)
