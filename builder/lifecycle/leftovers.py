"""Files in a home that the registry does not know: leftovers of interrupted builds, and stray folders."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backends.home import Home
from backends.storage import finished_name, is_set_aside

_HIDDEN = "."
_LOCK = ".lock"
"""Empty unless a build holds it; the next build takes it over."""
_WAITED_FOR = ".lock-"
"""Empty, and held while a teacher's model is made."""
_OF_ROOTS = (".mlm_head.safetensors",)
"""Files beside a root; any other name with a dot may be another root's."""


@dataclass(frozen=True)
class Leftover:
    """Something on disk and the folder that a build would have made of it."""

    path: Path
    target: Path
    kind: str


def leftovers(home: Home, known: Collection[str], untouched_s: float) -> list[Leftover]:
    """List what has not been written to for `untouched_s`. Check that no build holds it before you remove it.

    All that one build has left goes at once or not at all: it may have ended one part days before the next.
    """
    oldest = time.time() - untouched_s
    candidates = [item for folder in _rooms(home) for item in _in_room(home, folder, known)]
    candidates += [item for folder in _roots(home) for item in _unfinished(folder)]
    last_written: dict[Path, float] = {}
    for item in candidates:
        owner = _owner(item.target)
        last_written[owner] = max(_last_written(item.path), last_written.get(owner, 0.0))
    return [item for item in candidates if last_written[_owner(item.target)] <= oldest]


def forgotten_states(home: Home, untouched_s: float) -> list[Path]:
    """List what teachers and killed tunings left in the cache; a build that still reads it loses nothing but time."""
    oldest = time.time() - untouched_s
    hidden = (path for path in sorted(home.states.glob(".*")) if not path.name.startswith(_WAITED_FOR))
    return [path for path in hidden if _last_written(path) <= oldest]


def attachments(folder: Path) -> list[Path]:
    """List what belongs to a folder and lies beside it: `shop@2.overlay`, `mini.mlm_head.safetensors`."""
    if "@" in folder.name:
        return list(folder.parent.glob(f"{folder.name}.*"))
    beside = (folder.with_name(f"{folder.name}{suffix}") for suffix in _OF_ROOTS)
    return [path for path in beside if path.is_file()]


def size_bytes(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(part.lstat().st_size for part in path.rglob("*") if part.is_symlink() or part.is_file())


def _rooms(home: Home) -> Iterator[Path]:
    """The folders whose entries each stand for one root, domain version or hPLM version."""
    roots, plots, bank = (home.path / name for name in ("roots", "plots", "bank"))
    for folder in (roots, bank, *plots.glob("*"), *bank.glob("*")):
        if folder.is_dir() and not folder.name.startswith(_HIDDEN):
            yield folder


def _roots(home: Home) -> Iterator[Path]:
    """The folders of roots, in which builds of their own write: students, and what was measured of int8."""
    for folder in sorted((home.path / "roots").glob("*")):
        if folder.is_dir() and not folder.name.startswith(_HIDDEN):
            yield folder


def _in_room(home: Home, folder: Path, known: Collection[str]) -> Iterator[Leftover]:
    yield from _unfinished(folder)
    for path in sorted(folder.iterdir()):
        is_whole = not path.name.startswith(_HIDDEN) and finished_name(path.name) == path.name
        if is_whole and path.suffix != _LOCK and _is_stray(home, path, known):
            yield Leftover(path, path, "unknown folder")


def _unfinished(folder: Path) -> Iterator[Leftover]:
    for path in sorted(folder.iterdir()):
        whole = finished_name(path.name)
        if path.suffix == _LOCK:
            continue
        if path.name.startswith(_HIDDEN):
            target = path.with_name(whole[1:].rpartition(".")[0])
            if not is_set_aside(path, target):
                yield Leftover(path, target, "unfinished build")
        elif whole != path.name:
            yield Leftover(path, path.with_name(whole), "unfinished file")


def _is_stray(home: Home, path: Path, known: Collection[str]) -> bool:
    """Return whether no version owns a folder; the folders of roots within the bank are not stray."""
    if not path.is_dir() or path.parent == home.path / "bank":
        return False
    return not any(home.relative(each) in known for each in (path, _owner(path)))


def _owner(target: Path) -> Path:
    """The version or root that something belongs to: `shop@2` of `shop@2.overlay`."""
    name, at, version = target.name.partition("@")
    if at:
        return target.with_name(f"{name}@{version.partition('.')[0]}")
    suffix = next((suffix for suffix in _OF_ROOTS if name.endswith(suffix)), "")
    return target.with_name(name.removesuffix(suffix))


def _last_written(path: Path) -> float:
    parts = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
    written = 0.0
    for part in parts:
        with suppress(FileNotFoundError):  # its own build removes it
            written = max(written, part.lstat().st_mtime)
    return written
