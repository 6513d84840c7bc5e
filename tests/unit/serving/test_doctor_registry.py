"""What the doctor says of registries that are damaged, and of sound ones."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.registry import Registry
from builder.doctor import Status, check_access, check_disk, check_registry


def registry_of(home: Home) -> Path:
    return home.path / "registry.db"


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database\n" * 500)


def shorten(path: Path) -> None:
    """Cut off what a copy that was interrupted lacks."""
    path.write_bytes(path.read_bytes()[:-8192])


def scratch_page(path: Path) -> None:
    """Overwrite the page in which the table of hPLMs begins."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'hplms'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [overwrite, shorten, scratch_page, empty])
def test_a_damaged_file_is_named_in_one_line(tiny_home: Home, damage: Callable[[Path], None]) -> None:
    path = registry_of(tiny_home)
    damage(path)
    content = path.read_bytes()
    check = check_registry(tiny_home.path)
    assert check.status is Status.FAIL
    assert check.found.startswith(f"{path} is damaged: ") and "\n" not in check.found
    assert "put it back from a backup" in check.remedy
    assert path.read_bytes() == content


def test_a_registry_that_is_missing_where_models_lie(tiny_home: Home) -> None:
    registry_of(tiny_home).unlink()
    check = check_registry(tiny_home.path)
    assert (check.status, check.found) == (Status.FAIL, f"{registry_of(tiny_home)} is missing")


def test_a_registry_that_cannot_be_opened(tiny_home: Home) -> None:
    registry_of(tiny_home).unlink()
    registry_of(tiny_home).mkdir()
    check = check_registry(tiny_home.path)
    assert check.status is Status.FAIL and check.found.startswith(f"{registry_of(tiny_home)} cannot be read: ")


@pytest.mark.parametrize(
    ("url", "found"), [("sqlite:///relative.db", "must be an absolute path"), ("sqlite://", "names no file")]
)
def test_a_url_that_is_none(tiny_home: Home, monkeypatch: pytest.MonkeyPatch, url: str, found: str) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, url)
    check = check_registry(tiny_home.path)
    assert check.status is Status.FAIL and found in check.found and REGISTRY_VARIABLE in check.remedy


def test_a_sound_registry_stays_as_it_is(tiny_home: Home, tmp_path: Path) -> None:
    before, files = registry_of(tiny_home).read_bytes(), set(tiny_home.path.iterdir())
    assert check_registry(tiny_home.path).status is Status.OK
    assert registry_of(tiny_home).read_bytes() == before and set(tiny_home.path.iterdir()) == files
    registry = Registry.open(tiny_home)
    with registry._database.publication():
        assert check_registry(tiny_home.path).status is Status.OK, "while another process writes"
    registry.close()
    check = check_registry(tmp_path / "none")
    assert (check.status, check.found) == (Status.OK, "not made yet")


WRITER = """
import os, sqlite3, sys
writer = sqlite3.connect(sys.argv[1], isolation_level=None)
writer.execute("PRAGMA journal_mode = DELETE")
writer.execute("PRAGMA cache_size = 2")  # so that pages are written before the transaction ends
writer.execute("BEGIN")
writer.execute("CREATE TABLE half AS WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) SELECT i FROM n")
os._exit(9)
"""


def test_a_registry_whose_writer_was_killed_is_sound(tiny_home: Home) -> None:
    path = registry_of(tiny_home)
    assert subprocess.run([sys.executable, "-c", WRITER, path], check=False).returncode == 9
    assert path.with_name("registry.db-journal").stat().st_size > 0
    assert check_registry(tiny_home.path).found == "no fault found"


def test_a_path_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """Too long here, since root may enter every folder."""
    home = tmp_path / ("x" * 300)
    check = check_registry(home)
    assert check.status is Status.FAIL and "let this user read" in check.remedy
    assert check.found.startswith(f"{registry_of(Home(home))} cannot be read: ")
    assert check_disk(home).name == "disk at home" and check_access(home).name == "access to the home"


def test_a_registry_elsewhere_is_not_looked_at(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, "postgresql://nobody@127.0.0.1:1/none")
    check = check_registry(tiny_home.path)
    assert (check.status, check.found) == (Status.OK, "in another database, not looked at")
