"""Folders that a command cannot write, for root neither: mounted read-only, or without its rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

Kind = Literal["mounted read-only", "not permitted"]
REASONS: dict[Kind, str] = {
    "mounted read-only": "cannot be written: Read-only file system; mount its file system for writing",
    "not permitted": "cannot be written: Permission denied; let this user write there",
}
"""What a command says of a folder of each kind, after its path."""
_MOUNT = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
_MOUNTED = ["unshare", "-rm", "sh", "-c", _MOUNT, "sh"]
_WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
_HPLM = str(Path(sys.executable).with_name("hplm"))
_LIMIT_S = 120.0


def run_read_only(
    kind: Kind, folder: Path, *arguments: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `hplm` where it cannot write into a folder; others still can, where that is only mounted so for it."""
    before = mounted_read_only(folder) if kind == "mounted read-only" else _without_rights()
    with _mode_of_folders(folder, 0o555 if kind == "not permitted" else 0o755):
        return subprocess.run(
            [*before, _HPLM, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            env=os.environ | environment,
        )


def mounted_read_only(folder: Path) -> list[str]:
    """What stands before a command for which alone a folder is mounted read-only."""
    return _possible([*_MOUNTED, str(folder)])


def everything_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """The sizes and times of all files and folders."""
    return {path: (found.st_size, found.st_mtime_ns) for path in folder.rglob("*") for found in [path.stat()]}


def _without_rights() -> list[str]:
    """Root may write everywhere, unless it gives that right up; other users have it not."""
    if os.geteuid() != 0:
        return []
    return _possible(_WITHOUT_RIGHTS)


def _possible(before: list[str]) -> list[str]:
    if shutil.which(before[0]) is None:
        pytest.skip(f"needs {before[0]} of util-linux")
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{before[0]} is not allowed here")
    return before


@contextmanager
def _mode_of_folders(folder: Path, mode: int) -> Iterator[None]:
    before = {path: path.stat().st_mode for path in (folder, *folder.rglob("*")) if path.is_dir()}
    try:
        for path in before:
            path.chmod(mode)
        yield
    finally:
        for path, mode_before in before.items():
            path.chmod(mode_before)
