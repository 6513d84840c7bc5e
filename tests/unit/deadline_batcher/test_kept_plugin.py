"""The plugin that is built once for a user, and where nothing can be kept."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION, version_of
from builder import kept_plugin, plugin
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.kept_plugin import plugin_of_this_release

BUILDING = "building Triton's batching plugin, once for this release"
BUILDING_EACH_TIME = "building Triton's batching plugin"
NOT_KEPT = "the plugin is built, and not kept: "


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def quickly_built(built_plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile once for all tests that ask where it is kept, not what it is."""
    monkeypatch.setattr(kept_plugin, "build_plugin", lambda target: shutil.copy(built_plugin, target))


def taken(said: list[str]) -> Path:
    with plugin_of_this_release(said.append) as found:
        assert version_of(found) == PLAN_VERSION
        return found


def carries_plugin(repository: Path) -> bool:
    return all(version_of(repository / name / "1" / FILE_NAME) == PLAN_VERSION for name in ("hplm_lower", "hplm_upper"))


@pytest.mark.usefixtures("quickly_built")
def test_it_is_built_once_and_again_where_it_is_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    kept = taken(said)
    assert kept.is_relative_to(cache)
    assert taken(said) == kept
    kept.write_bytes(kept.read_bytes()[:100])
    assert taken(said) == kept
    assert said == [BUILDING, BUILDING]
    assert [path.name for path in kept.parent.iterdir()] == [FILE_NAME]
    monkeypatch.setattr(plugin, "find_compiler", lambda: None)
    assert taken(said) == kept, "what is kept needs no compiler"


@pytest.mark.usefixtures("quickly_built")
def test_it_is_kept_whatever_a_new_file_may_be(cache: Path) -> None:
    """Many machines let a user's group write what is made."""
    before = os.umask(0o002)
    try:
        said: list[str] = []
        assert taken(said) == taken(said)
    finally:
        os.umask(before)
    assert said == [BUILDING]


def test_another_compiler_builds_it_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = taken([])
    monkeypatch.setenv("CXX", "c++ -O1")
    assert taken([]) != kept


@pytest.mark.usefixtures("quickly_built")
def test_what_others_may_write_is_not_taken(cache: Path, tmp_path: Path) -> None:
    """The server loads the file, so whoever may write it may run code in the server."""
    said: list[str] = []
    kept = taken(said)
    for path in (kept, kept.parent, kept.parent.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        said.clear()
        assert not taken(said).is_relative_to(cache)
        assert said == [BUILDING_EACH_TIME, f"{NOT_KEPT}others than its user may write {path}"]
        path.chmod(mode)
    assert taken(said) == kept


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.usefixtures("quickly_built")
def test_what_belongs_to_another_user_is_not_taken(cache: Path) -> None:
    kept = taken([])
    for path in (kept, kept.parent, kept.parent.parent):
        os.chown(path, 65534, -1)
        said: list[str] = []
        assert not taken(said).is_relative_to(cache)
        assert said == [BUILDING_EACH_TIME, f"{NOT_KEPT}{path} belongs to another user"]
        os.chown(path, 0, -1)
    assert taken([]) == kept


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.usefixtures("quickly_built")
def test_what_another_user_may_move_or_has_linked_is_not_taken(cache: Path, tmp_path: Path) -> None:
    kept = taken([])
    os.chown(cache, 65534, -1)
    said: list[str] = []
    assert not taken(said).is_relative_to(cache)
    assert said == [BUILDING_EACH_TIME, f"{NOT_KEPT}{cache} belongs to another user"]
    os.chown(cache, 0, -1)
    (cache / "hplm").rename(tmp_path / "moved")
    (cache / "hplm").symlink_to(tmp_path / "moved")
    assert taken([]) == kept
    os.chown(cache / "hplm", 65534, -1, follow_symlinks=False)
    said.clear()
    assert not taken(said).is_relative_to(cache)
    assert said == [BUILDING_EACH_TIME, f"{NOT_KEPT}{cache / 'hplm'} belongs to another user"]


@pytest.mark.usefixtures("quickly_built")
def test_where_anybody_may_write_beside_the_cache_nothing_is_kept(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    said: list[str] = []
    taken(said)
    assert said == [BUILDING_EACH_TIME, f"{NOT_KEPT}anybody may write {cache}"]
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("quickly_built")
def test_a_full_cache_costs_no_plugin(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(built: Path, folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(kept_plugin, "_keep", fill)
    said: list[str] = []
    render_repository(tmp_path / "repository", ExportSettings(), say=said.append)
    assert said[0] == BUILDING and said[1].startswith(NOT_KEPT) and "No space left" in said[1]
    assert carries_plugin(tmp_path / "repository")


def test_an_export_goes_on_where_there_is_no_room_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    said: list[str] = []
    render_repository(tmp_path / "repository", ExportSettings(), say=said.append)
    assert said[0] == BUILDING_EACH_TIME
    assert "the deadline batcher could not be built: " in said[1] and "Triton will hand over requests" in said[1]
    assert not list((tmp_path / "repository").rglob(FILE_NAME))


@pytest.mark.usefixtures("quickly_built")
@pytest.mark.parametrize("where", ["file", "file/below"])
def test_without_a_cache_it_is_built_each_time(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / where))
    said: list[str] = []
    render_repository(tmp_path / "repository", ExportSettings(), say=said.append)
    assert said[0] == BUILDING_EACH_TIME and said[1].startswith(NOT_KEPT) and len(said) == 2
    assert carries_plugin(tmp_path / "repository")


@pytest.mark.usefixtures("quickly_built")
def test_a_relative_cache_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert taken([]).is_relative_to(tmp_path / "user" / ".cache")
    assert not (tmp_path / "here").exists()


def test_who_wants_no_plugin_gets_none(cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    render_repository(tmp_path / "repository", ExportSettings(takes_plugin=False), say=said.append)
    assert said == []
    assert not cache.exists()
    assert not list((tmp_path / "repository").rglob(FILE_NAME))


def test_it_loads_on_machines_of_the_last_years(cache: Path) -> None:
    """The same export runs in NVIDIA's containers, whose C and C++ libraries may be older than this machine's."""
    content = taken([]).read_bytes()
    for prefix, newest in ((rb"GLIBC_2\.", 31), (rb"GLIBCXX_3\.4\.", 28)):
        assert max((int(found) for found in re.findall(prefix + rb"(\d+)", content)), default=0) <= newest
