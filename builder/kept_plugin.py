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
from contextlib import ExitStack, contextmanager
from pathlib import Path

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION, SOURCE, version_of
from backends.errors import HplmError
from builder.plugin import FLAGS, PluginError, build_plugin, require_compiler

_BUILDING = "building Triton's batching plugin, once for this release"


class _NoCacheError(HplmError):
    """Nothing can be kept."""


@contextmanager
def plugin_of_this_release(say: Callable[[str], None]) -> Iterator[Path]:
    """Take the plugin from the user's cache, built first where it is not there; without a cache it is not kept.

    Raises:
        PluginError: It cannot be built.
    """
    with ExitStack() as until_copied:
        try:
            plugin = _kept(say)
        except (_NoCacheError, OSError) as error:
            require_compiler()
            say(f"building Triton's batching plugin, which is not kept: {error}")
            plugin = _not_kept(until_copied)
        yield plugin


def _not_kept(until_copied: ExitStack) -> Path:
    try:
        folder = until_copied.enter_context(tempfile.TemporaryDirectory(prefix="hplm_plugin_"))
        build_plugin(built := Path(folder) / FILE_NAME)
    except OSError as error:
        raise PluginError(f"the deadline batcher could not be built: {error}") from error
    return built


def _kept(say: Callable[[str], None]) -> Path:
    cache = _cache()
    cache.parent.mkdir(parents=True, exist_ok=True)
    folder = cache / f"plugin-{_fingerprint()}"
    for made in (cache, folder):
        made.mkdir(mode=0o700, exist_ok=True)
        _require_own(made)
    kept = folder / FILE_NAME
    if not _is_usable(kept):
        require_compiler()
        say(_BUILDING)
        build_plugin(kept)
        _require_own(kept)
    return kept


def _is_usable(kept: Path) -> bool:
    if not kept.is_file():
        return False
    _require_own(kept)
    return version_of(kept) == PLAN_VERSION


def _require_own(path: Path) -> None:
    """Triton loads the file, so nobody else may have written it."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise _NoCacheError(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o022:
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
