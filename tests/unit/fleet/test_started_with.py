"""The release that a server was started with: a version, and what its code was."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from backends.errors import UnavailableError
from builder.fleet import started_with
from builder.fleet.started_with import PACKAGES, installed_release, release_if_known

_PROJECT = Path(__file__).parents[3]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only module of another installation."""
    monkeypatch.setattr(started_with, "_INSTALLED_IN", tmp_path)
    module = tmp_path / "backends" / "lower" / "texts.py"
    module.parent.mkdir(parents=True)
    module.write_text("LIMIT = 1\n")
    return module


def test_other_code_of_the_same_version_is_another_release(module: Path) -> None:
    before = installed_release()
    assert installed_release() == before and re.fullmatch(r"\S+ \([0-9a-f]{8}\)", before)
    module.write_text("LIMIT = 2\n")
    after = installed_release()
    assert after != before and after.partition(" ")[0] == before.partition(" ")[0]
    module.rename(module.with_name("rows.py"))
    assert installed_release() not in (before, after)


def test_compiled_files_and_other_distributions_do_not_count(module: Path, tmp_path: Path) -> None:
    before = installed_release()
    for name in ("backends/lower/__pycache__/texts.cpython-311.pyc", "torch/nn.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    assert installed_release() == before


def test_code_that_vanishes_meanwhile_is_being_upgraded(module: Path) -> None:
    module.unlink()
    module.symlink_to("nowhere.py")
    with pytest.raises(UnavailableError, match="is being upgraded; try again later"):
        installed_release()
    assert release_if_known() == ""


def test_all_that_is_installed_counts() -> None:
    project = tomllib.loads((_PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {*PACKAGES} == {pattern.rstrip("*").rstrip(".") for pattern in included}
    assert all((started_with._INSTALLED_IN / package).is_dir() for package in PACKAGES)
