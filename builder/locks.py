"""One build at a time per artefact: an advisory lock that goes with its process, however that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.storage import disk_full_is_an_error, locked


@contextmanager
def exclusive(target: Path, what: str) -> Iterator[None]:
    """Hold the build lock of `target` (which need not exist); somebody else's hold is an error."""
    lock_path = target.with_name(f".{target.name}.lock")
    with locked(lock_path, _open_lock, f"{what} is being built by another process"):
        try:
            yield
        finally:
            # While it is still held: whoever opened it before finds out and takes a new one.
            lock_path.unlink(missing_ok=True)


def _open_lock(path: Path) -> int:
    with disk_full_is_an_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
