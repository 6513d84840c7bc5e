"""What users see of files: the names that they gave them, and no path of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.errors import HplmError


@contextmanager
def called(path: Path, name: str) -> Iterator[None]:
    """Errors that name the path give the name instead."""
    try:
        yield
    except HplmError as error:
        raise type(error)(str(error).replace(str(path), name)) from error
