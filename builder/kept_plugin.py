"""The deadline batcher of this release, built once for a user and kept in the user's cache.

Usage:
    with plugin_of_this_release(print) as plugin:
        shutil.copyfile(plugin, folder / FILE_NAME)
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION, SOURCE, version_of
from backends.errors import HplmError
from builder.plugin import FLAGS, build_plugin, require_compiler

_BUILDING = "building Triton's batching plugin, once for this release"


class _NoCacheError(HplmError):
    """Nothing can be kept."""


@contextmanager
def plugin_of_this_release(say: Callable[[str], None]) -> Iterator[Path]:
    """Take the plugin from the user's cache, built first where it is not there; without a cache it is not kept.

    Raises:
        PluginError: It cannot be built.
    """
    try:
        kept = _kept(say)
    except (_NoCacheError, OSError) as error:
        with tempfile.TemporaryDirectory(prefix="hplm_plugin_") as folder:
            require_compiler()
            say(f"building Triton's batching plugin, which is not kept: {error}")
            build_plugin(built := Path(folder) / FILE_NAME)
            yield built
    else:
        yield kept


def _kept(say: Callable[[str], None]) -> Path:
    folder = _cache() / f"plugin-{_fingerprint()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = folder / FILE_NAME
    _require_own(folder)
    if _is_usable(kept):
        return kept
    require_compiler()
    say(_BUILDING)
    build_plugin(kept)
    return kept


def _is_usable(kept: Path) -> bool:
    if not kept.is_file():
        return False
    _require_own(kept)
    return version_of(kept) == PLAN_VERSION


def _require_own(path: Path) -> None:
    """Triton loads the file, so nobody else may have written it."""
    found = path.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise _NoCacheError(f"others than its user may write {path}")


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
