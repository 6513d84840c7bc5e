"""Locks between processes, on files: a lock goes with its process, however that ends, also on a shared disk.

The file is made for the lock and removed at its end. Directories are never locked: NFS locks only what is open for
writing.

Usage:
    with locked(home.path / ".gc.lock", "another collection is at work"):
        ...
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from backends.errors import InvalidArgumentError, LockedError

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class _ReplacedError(Exception):
    """The last holder removed the file between its opening and its locking."""


@contextmanager
def locked(path: Path, conflict: str) -> Iterator[None]:
    """Hold a lock; raise LockedError(`conflict`) at once where another process or thread has it."""
    try:
        lock = _acquired(path, blocking=False)
    except Timeout:
        raise LockedError(conflict) from None
    with _released_at_end(lock, path):
        yield


@contextmanager
def locked_in_turn(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock; call `on_wait` once and wait where another process or thread has it."""
    try:
        lock = _acquired(path, blocking=False)
    except Timeout:
        on_wait()
        lock = _acquired(path, blocking=True)
    with _released_at_end(lock, path):
        yield


def _acquired(path: Path, *, blocking: bool) -> FileLock:
    in_place = partial(_require_in_place, path)
    while True:
        # Not a marker file where there are no locks: a kill would leave it held for ever.
        lock = FileLock(path, thread_local=False, fallback_to_soft=False, on_acquired=in_place)
        try:
            with suppress(_ReplacedError):
                lock.acquire(blocking=blocking)
                return lock
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise InvalidArgumentError(f"the file system of {path.parent} keeps no locks: {error}") from error
            raise


def _require_in_place(path: Path, descriptor: int) -> None:
    """Compare the locked file with that of the name; on NFS a removed one may still count a link."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return
    raise _ReplacedError


@contextmanager
def _released_at_end(lock: FileLock, path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: a waiting process notices, and makes a new file
        lock.release()
