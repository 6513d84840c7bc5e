"""A disk of a few kilobytes: a tmpfs in a namespace of its own, where ENOSPC is the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run_on_small_disk(script: str, folder: Path, size_kb: int) -> str:
    """Run Python code in whose process `folder` is that disk, and its name is in `sys.argv[1]`; return its stderr."""
    mount = f'mount -t tmpfs -o size={size_kb}k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    folder.mkdir(exist_ok=True)
    paths = f"import sys; sys.path[:0] = {[str(TESTS.parent), str(TESTS), str(TESTS / 'unit' / 'plot')]!r}\n"
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", str(folder), sys.executable, paths + script]
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stderr
