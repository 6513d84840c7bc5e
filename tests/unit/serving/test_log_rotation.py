"""A server's log stays within its size, however much is written, and its follower goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from builder.serving.config import ServerConfig
from builder.serving.log import LogFollower
from builder.serving.log_rotation import LogRotation
from small_disk import run_on_small_disk
from waiting import wait_until

KILOBYTE = 1 << 10
WRITER = "import sys\nfor n in range(int(sys.argv[1])): print(f'line {n:06d}', 'x' * 87, flush=True)"
AT_ONCE = "import os, sys\nos.write(1, b''.join(b'line %06d %s\\n' % (n, b'x' * 87) for n in range(int(sys.argv[1]))))"
"""As `WRITER`, but no line comes behind a rotation that the others have brought about."""


def write(path: Path, num_lines: int, writer: str = WRITER) -> subprocess.Popen[bytes]:
    """Append lines of a hundred bytes from another process, to a file that it holds open as tritonserver does."""
    with path.open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", writer, str(num_lines)], stdout=log)


def test_a_flood_of_lines_takes_two_sizes_and_the_last_lines_are_there(tmp_path: Path) -> None:
    path, seen = tmp_path / "server.log", list[str]()
    path.touch()
    rotation = LogRotation(path, 50 * KILOBYTE)
    follower = LogFollower(path, seen.append, rotation)
    for _ in range(10):
        write(path, 300).wait()
        wait_until(lambda: path.stat().st_size <= 50 * KILOBYTE)
    follower.finish()
    kept = path.read_text() + rotation.moved.read_text()
    assert len(kept) < 120 * KILOBYTE
    assert sorted(os.listdir(tmp_path)) == ["server.log", "server.log.1"]
    assert "line 000299" in kept
    assert len(seen) > 2900, "nearly all lines reach the screen"


def test_a_screen_that_fails_ends_neither_following_nor_rotation(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()

    def fail(line: str) -> None:
        raise BrokenPipeError

    follower = LogFollower(path, fail, LogRotation(path, 10 * KILOBYTE))
    write(path, 110, AT_ONCE).wait()
    wait_until(lambda: (tmp_path / "server.log.1").exists() and path.stat().st_size == 0)
    follower.finish()
    assert len(follower.lines) == 110


def test_two_servers_with_one_log_move_it_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.touch()
    followers = [LogFollower(path, None, LogRotation(path, 10 * KILOBYTE)) for _ in range(2)]
    write(path, 110, AT_ONCE).wait()
    wait_until(lambda: (tmp_path / "server.log.1").exists() and path.stat().st_size == 0)
    time.sleep(0.2)
    assert (tmp_path / "server.log.1").read_text().count("\n") == 110
    for follower in followers:
        follower.finish()


def test_a_log_that_others_shorten_is_followed(tmp_path: Path) -> None:
    path, seen = tmp_path / "server.log", list[str]()
    path.touch()
    follower = LogFollower(path, seen.append)
    write(path, 20).wait()
    wait_until(lambda: len(seen) == 20)
    os.truncate(path, 0)  # as copytruncate does
    time.sleep(0.2)
    write(path, 5).wait()
    wait_until(lambda: len(seen) == 25)
    follower.finish()


def test_on_a_full_disk_old_lines_make_room(tmp_path: Path) -> None:
    script = """
from pathlib import Path
from builder.serving.log_rotation import LogRotation
path = Path(sys.argv[1]) / "server.log"
path.write_bytes(b"x" * (40 << 10))
rotation = LogRotation(path, 30 << 10)
with path.open("rb") as log:
    rotation.rotate_if_full(log)
assert path.stat().st_size == 0 and not rotation.moved.exists()
"""
    run_on_small_disk(script, tmp_path / "disk", 64)


def test_a_log_has_a_least_size(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a log needs at least 1 MiB"):
        ServerConfig(repository=tmp_path, max_log_bytes=0)
