"""The folder where the processes of one server leave what they tell each other, in files that they map into memory."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

FOLDER_VARIABLE = "HPLM_SIGNALS"
"""Names a folder that goes with its server; without it the files lie among the machine's temporary ones."""


def server_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())


def file_prefix(kind: str, server: int | None = None) -> str:
    """Return what the names of a server's files begin with; by default of the parent, as of models' processes."""
    return f"hplm-{kind}-{os.getppid() if server is None else server}"


def made_anew(path: Path, size_bytes: int) -> mmap.mmap:
    """Make a file of zeros; a model that is loaded again must not go on with that of its dead process."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)  # or writing would end the process on a full disk
        return mmap.mmap(descriptor, size_bytes)
    finally:
        os.close(descriptor)


def mapped(path: Path, size_bytes: int) -> mmap.mmap | None:
    """Map a file for reading; None for one that is gone meanwhile, not written yet, or another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return None
        return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
