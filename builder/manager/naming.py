"""The names that users gave to files, in messages instead of paths of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.errors import HplmError


@contextmanager
def replacing_path_in_errors(path: Path, name: str) -> Iterator[None]:
    """Let errors that name the path give the name instead."""
    try:
        yield
    except HplmError as error:
        raise type(error)(str(error).replace(str(path), name)) from error
