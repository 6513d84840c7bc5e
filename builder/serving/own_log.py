"""A log for each server of a home: several may run on it, also on several machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from backends.errors import ConflictError
from backends.file_lock import locked


@contextmanager
def own_log(folder: Path) -> Iterator[Path]:
    """Hold `server.log` in a folder; while other servers have that, `server-2.log`, `server-3.log` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        yield next(path for path in _names(folder) if _take(path, held))


def _names(folder: Path) -> Iterator[Path]:
    yield folder / "server.log"
    yield from (folder / f"server-{number}.log" for number in count(2))


def _take(path: Path, held: ExitStack) -> bool:
    try:
        held.enter_context(locked(path.with_name(f".{path.name}.lock"), f"another server writes {path}"))
    except ConflictError:
        return False
    return True
