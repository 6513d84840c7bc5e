"""The doors between the rooms, as `pyproject.toml` names them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[2]


@pytest.mark.long  # `make check`, which continuous integration runs before, does the same
def test_rooms_import_only_what_they_may() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=_PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_of_the_installed_project_is_looked_at() -> None:
    config = (_PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in _PROJECT.glob("*/__init__.py")} - {"tests"}
    line = next(line for line in config.splitlines() if line.startswith("root_packages"))
    assert {room for room in rooms if f'"{room}"' not in line} == set()


def test_no_room_imports_tests() -> None:
    rooms = [path.parent for path in _PROJECT.glob("*/__init__.py") if path.parent.name != "tests"]
    files = [path for room in rooms for path in room.rglob("*.py")]
    importing = [str(path) for path in files if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)]
    assert importing == []
