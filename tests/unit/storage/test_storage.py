"""Publishing a folder: whole or not at all, whatever fails in between and whoever else is at it."""

from __future__ import annotations

import errno
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PosixPath

import pytest
import torch
from safetensors.torch import load_file

from backends.errors import ConflictError
from backends.storage import (
    finished_name,
    publish_folder,
    publishing,
    replacing,
    staging_folder,
    write_file,
    write_tensors,
)


def publish(target: Path, content: str) -> None:
    with publishing(target) as folder:
        (folder / "file").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class FaultyPath(PosixPath):
    """A path on a disk that fails when the staged folder is to get its final name."""

    def rename(self, target: str | Path) -> Path:
        if self.name.endswith(".building"):
            raise OSError(errno.EIO, "broken disk")
        return super().rename(target)


def test_a_swap_that_fails_half_way_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "x"
    publish(target, "old")
    staging_folder(target).mkdir()
    (staging_folder(target) / "file").write_text("new")
    with pytest.raises(OSError, match="broken disk"):
        publish_folder(FaultyPath(target))
    assert (target / "file").read_text() == "old"
    publish_folder(target)
    assert (target / "file").read_text() == "new"
    assert names(tmp_path) == ["x"]


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x"
    publish(target, "old")
    target.rename(tmp_path / ".x.replaced")  # what the crash leaves
    with pytest.raises(RuntimeError), publishing(target):
        raise RuntimeError
    assert (target / "file").read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_what_a_crash_after_both_renames_left_is_cleared(tmp_path: Path) -> None:
    target = tmp_path / "x"
    publish(target, "old")
    (tmp_path / ".x.replaced").mkdir()
    (tmp_path / ".x.replaced" / "file").write_text("older")
    publish(target, "new")
    assert (target / "file").read_text() == "new"
    assert names(tmp_path) == ["x"]


def test_a_file_in_the_place_of_a_folder_is_replaced_for_good(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("no folder")
    publish(target, "new")
    publish(target, "newer")
    assert (target / "file").read_text() == "newer"
    assert names(tmp_path) == ["x"]


def test_a_second_publisher_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "x"
    with publishing(target) as folder:
        (folder / "file").write_text("first")
        with pytest.raises(ConflictError, match="written by another process"):
            publish(target, "second")
    assert (target / "file").read_text() == "first"
    publish(target, "third")
    assert (target / "file").read_text() == "third"


def test_the_staging_of_a_killed_publisher_is_emptied(tmp_path: Path) -> None:
    target = tmp_path / "x"
    (staging_folder(target) / "folder").mkdir(parents=True)
    (staging_folder(target) / "stale").write_text("stale")
    publish(target, "new")
    assert names(target) == ["file"]


def test_tensors_are_readable_for_others(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).T, "b": torch.randn(2).to(torch.float16)}
    before = os.umask(0o077)
    try:
        write_tensors(tmp_path / "t.safetensors", tensors)
    finally:
        os.umask(before)
    assert (tmp_path / "t.safetensors").stat().st_mode & 0o777 == 0o644
    for name, tensor in load_file(tmp_path / "t.safetensors").items():
        assert torch.equal(tensor, tensors[name])
    assert names(tmp_path) == ["t.safetensors"]


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0a1b2c3d")
    path.with_name("file.0a1b2c3d.new").symlink_to("/dev/full")
    with pytest.raises(Exception, match="no space left on the disk"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_two_writers_of_one_file_both_succeed_and_the_last_to_end_wins(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as slow:
        slow.write(b"slow " * 1000)
        write_file(path, b"quick")
        assert path.read_bytes() == b"quick"
        slow.write(b"end")
    assert path.read_bytes() == b"slow " * 1000 + b"end"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("name", "finished"),
    [
        ("x.json.0a1b2c3d.new", "x.json"),
        (".mini.checkpoint.0a1b2c3d.new", ".mini.checkpoint"),
        ("x.json.new", "x.json"),
        ("x.json", "x.json"),
    ],
)
def test_what_a_half_written_file_becomes(name: str, finished: str) -> None:
    assert finished_name(name) == finished


def test_many_publish_at_once_and_nobody_meets_anything_but_a_conflict(tmp_path: Path) -> None:
    """Staged folders come and go all the time between any two steps of somebody else."""
    target = tmp_path / "parts" / "one"

    def publish(number: int) -> int:
        published = 0
        for _ in range(200):
            with suppress(ConflictError), publishing(target) as folder:
                (folder / "number").write_text(str(number))
                published += 1
        return published

    with ThreadPoolExecutor(4) as publishers:
        assert sum(publishers.map(publish, range(4))) > 0
    assert [path.name for path in target.parent.iterdir()] == ["one"]
    assert (target / "number").read_text() in "0123"
