"""The deadline batcher of this release, built once for a user and kept in the user's cache.

Usage:
    with plugin_of_this_release(print) as plugin:
        shutil.copyfile(plugin, folder / FILE_NAME)
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION, SOURCE, version_of
from backends.errors import HplmError
from builder.plugin import FLAGS, PluginError, build_plugin, require_compiler

_ROOT = 0
_BUILDING = "building Triton's batching plugin"
_NOT_KEPT = "the plugin is built, and not kept: "


class _NoCacheError(HplmError):
    """Nothing can be kept."""


@contextmanager
def plugin_of_this_release(say: Callable[[str], None]) -> Iterator[Path]:
    """Take the plugin from the user's cache, built first where it is not there; without a cache it is not kept.

    Raises:
        PluginError: It cannot be built.
    """
    folder, why_not = _folder()
    if folder is not None and _is_usable(folder / FILE_NAME):
        yield folder / FILE_NAME
        return
    require_compiler()
    say(_BUILDING if folder is None else f"{_BUILDING}, once for this release")
    with _built() as built:
        plugin = built
        if folder is not None:
            try:
                plugin = _keep(built, folder)
            except OSError as error:  # a full disk, say
                why_not = str(error)
        if why_not:
            say(f"{_NOT_KEPT}{why_not}")
        yield plugin


def _folder() -> tuple[Path | None, str]:
    """Return the folder of what is kept, or why there is none."""
    try:
        cache = _cache()
        cache.parent.mkdir(parents=True, exist_ok=True)
        _require_not_open(cache.parent)
        folder = cache / f"plugin-{_fingerprint()}"
        for made in (cache, folder):
            made.mkdir(mode=0o700, exist_ok=True)
            _require_own(made)
        if (folder / FILE_NAME).exists():
            _require_own(folder / FILE_NAME)
    except (_NoCacheError, OSError) as error:
        return None, str(error)
    return folder, ""


@contextmanager
def _built() -> Iterator[Path]:
    """Build it in a folder of its own: the cache may be full."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="hplm_plugin_")
    except OSError as error:
        raise PluginError(f"the deadline batcher could not be built: {error}") from error
    with folder:
        built = Path(folder.name) / FILE_NAME
        try:
            build_plugin(built)
        except OSError as error:
            raise PluginError(f"the deadline batcher could not be built: {error}") from error
        yield built


def _keep(built: Path, folder: Path) -> Path:
    """Return a copy in the folder, where it appears whole."""
    kept = folder / FILE_NAME
    with tempfile.TemporaryDirectory(dir=folder, prefix=".plugin_") as beside:
        shutil.copy(built, Path(beside) / FILE_NAME)
        (Path(beside) / FILE_NAME).replace(kept)
    return kept


def _is_usable(kept: Path) -> bool:
    try:
        return kept.is_file() and version_of(kept) == PLAN_VERSION
    except OSError:
        return False


def _require_own(path: Path) -> None:
    """Triton loads the file, so nobody else may have written it, or have linked it there."""
    found = path.stat()
    if {found.st_uid, path.lstat().st_uid} != {os.geteuid()}:
        raise _NoCacheError(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise _NoCacheError(f"others than its user may write {path}")


def _require_not_open(path: Path) -> None:
    """Check that nobody else may put another folder in the place of the cache."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise _NoCacheError(f"{path} belongs to another user")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise _NoCacheError(f"anybody may write {path}")


def _cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".cache") / "hplm"
    except RuntimeError as error:
        raise _NoCacheError("the user has no home folder") from error


def _fingerprint() -> str:
    """Digest what a build depends on; the compiler counts only where the user has chosen it."""
    about = (os.environ.get("CXX"), FLAGS, PLAN_VERSION, platform.machine(), platform.libc_ver())
    digest = hashlib.blake2b(repr(about).encode(), digest_size=8)
    for path in [*sorted(SOURCE.parent.glob("*.h")), SOURCE]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
