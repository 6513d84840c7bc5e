"""What was written is on the disk before its name says so: files, the files of a folder, the folder's own name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.storage import publishing, write_file


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, frozenset[str]]]:
    """The inodes that were synced so far, each with the names that stood in the folder of the test then."""
    seen: list[tuple[int, frozenset[str]]] = []
    sync: Callable[[int], None] = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        seen.append((os.fstat(descriptor).st_ino, frozenset(os.listdir(path if path.is_dir() else path.parent))))

    monkeypatch.setattr(os, "fsync", noted)
    return seen


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, synced: list[tuple[int, frozenset[str]]]) -> None:
    write_file(tmp_path / "x", b"content")
    ((number, names),) = [one for one in synced if one[0] == inode(tmp_path / "x")]
    assert number == inode(tmp_path / "x")
    assert "x" not in names


def test_a_folder_is_on_the_disk_with_its_files_and_its_name(
    tmp_path: Path, synced: list[tuple[int, frozenset[str]]]
) -> None:
    target = tmp_path / "x"
    with publishing(target) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("content")
    numbers = [number for number, _ in synced]
    wanted = [inode(path) for path in (target / "inner" / "file", target / "inner", target)]
    assert set(wanted) <= set(numbers)
    after = [names for number, names in synced if number == inode(tmp_path)]
    assert after and "x" in after[-1], "the name of the folder is made durable once it is there"
