"""Locks between processes: one holder, a kill frees them, and a shared disk can keep them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends import file_lock
from backends.errors import ConflictError, InvalidArgumentError
from backends.file_lock import locked, locked_in_turn
from backends.home import Home
from backends.plot.header import TableSpec
from backends.plot.writer import TableWriter
from backends.storage import publishing
from builder.locks import exclusive

HOLD = """
import sys
from pathlib import Path
from backends.file_lock import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold_elsewhere(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_one_process_holds_a_lock_and_a_kill_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.lock"
    child = hold_elsewhere(path)
    try:
        with pytest.raises(ConflictError, match="busy"), locked(path, "busy"):
            pass
    finally:
        child.kill()
        child.wait()
    with locked(path, "busy"):
        assert path.exists()
    assert not path.exists()


def test_a_process_that_waits_says_so_once_and_is_next(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    child = hold_elsewhere(path)
    waits: list[str] = []

    def end_the_holder() -> None:
        waits.append("waits")
        child.kill()

    with locked_in_turn(path, end_the_holder):
        assert waits == ["waits"]
        with pytest.raises(ConflictError), locked(path, "busy"):
            pass
    child.wait()


@pytest.mark.parametrize("removal", ["unlinked", "renamed as NFS does"])
def test_a_file_that_its_holder_removed_while_it_was_opened_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removal: str
) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    opened, held = os.open, ExitStack()

    def open_before_another_takes_it(*arguments: object, **options: object) -> int:
        descriptor: int = opened(*arguments, **options)  # type: ignore[arg-type]
        monkeypatch.undo()
        path.rename(tmp_path / ".nfs0001") if removal.startswith("renamed") else path.unlink()
        held.enter_context(locked(path, "busy"))
        return descriptor

    monkeypatch.setattr(os, "open", open_before_another_takes_it)
    with held, pytest.raises(ConflictError, match="busy"), locked(path, "busy"):
        pass


def test_many_threads_hold_it_one_after_the_other(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "x.lock", [0], [0]

    def hold_often() -> None:
        for _ in range(20):
            with locked_in_turn(path, lambda: None):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=hold_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks as on NFS: an exclusive one needs a descriptor that is open for writing, which no directory's is."""
    flock = fcntl.flock

    def flock_on_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_on_nfs)


@pytest.mark.usefixtures("nfs")
def test_what_is_written_to_a_home_on_nfs_is_locked(tmp_path: Path) -> None:
    home = Home(tmp_path)
    target = home.plot("mini", "shop", 1)
    with exclusive(home, target, "domain 'shop'"):
        with pytest.raises(ConflictError, match="is being built"), exclusive(home, target, "domain 'shop'"):
            pass
        with TableWriter(target, TableSpec("mini", "f00d", 8, 5)), pytest.raises(ConflictError):
            TableWriter(target, TableSpec("mini", "f00d", 8, 5))
    with publishing(home.bank("mini", "acme/x", 1)) as staged:
        with pytest.raises(ConflictError, match="written by another process"), publishing(staged.parent / "acme--x@1"):
            pass
        (staged / "weights").touch()
    assert [path.name for path in home.bank("mini", "acme/x", 1).parent.iterdir()] == ["acme--x@1"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(InvalidArgumentError, match=f"the file system of {tmp_path} keeps no locks"):
        file_lock.locked(tmp_path / "x.lock", "busy").__enter__()
