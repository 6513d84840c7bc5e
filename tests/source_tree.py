"""The project's own files, copied to where a build may write beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "docs", "tests", "demo_home", "hplm_home", "quickstart_home"
)


def copy_source(target: Path) -> Path:
    """Copy what distributions are made of, and return the copy."""
    return Path(shutil.copytree(PROJECT, target, ignore=_LEFT_OUT))


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel of a source folder with the setuptools that is installed, and return it."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--wheel-dir", target, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel
