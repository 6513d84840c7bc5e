"""The files of recorded traffic: when one follows another, how much of the disk they take, and what a clock does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from traffic_cases import entry, records

import backends.traffic.segments as module
from backends.clock import now_us
from backends.errors import StorageFullError
from backends.traffic.recording import read_recording
from backends.traffic.segments import Segments
from backends.traffic.settings import TrafficSettings


class Limits(TrafficSettings):
    """Limits of a few kilobytes, which users cannot set."""

    @property
    def max_bytes(self) -> int:
        return 40_000

    @property
    def file_bytes(self) -> int:
        return 10_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BLOCK_BYTES", 5_000)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.traffic"), key=lambda path: path.stat().st_mtime_ns)


def append(segments: Segments, count: int = 100, id: str = "acme/topic") -> None:
    segments.append(records([now_us()] * count), [entry(id)] * count)


def test_a_full_file_is_followed_by_the_next_and_the_oldest_makes_room(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "traffic", "p", Limits())
    sizes = []
    for _ in range(40):  # of 3.2 KB each
        append(segments)
        files = files_in(tmp_path / "traffic")
        sizes.append((max(path.stat().st_size for path in files), sum(path.stat().st_size for path in files)))
    segments.close()
    assert max(one for one, _ in sizes) <= Limits().file_bytes
    assert max(total for _, total in sizes) <= Limits().max_bytes
    assert len(files_in(tmp_path / "traffic")) >= 3
    assert max(total for _, total in sizes) > Limits().max_bytes / 2, "room is used"


def test_each_file_names_its_hplms_anew(tmp_path: Path) -> None:
    segments = Segments(tmp_path, "p", Limits())
    for number in range(9):
        segments.append(records([now_us()] * 100), [entry(f"acme/{number % 2}", key=number % 2)] * 100)
    segments.close()
    for path in files_in(tmp_path):
        read = read_recording(path)
        assert read.damage is None
        assert {read.hplms[number].id for number in read.records["hplm"]} <= {"acme/0", "acme/1"}
        assert len(read.hplms) == len(set(read.hplms))


def test_two_writers_have_files_of_their_own_and_none_removes_what_the_other_writes(tmp_path: Path) -> None:
    first, second = Segments(tmp_path, "first", Limits()), Segments(tmp_path, "second", Limits())
    append(first)
    for _ in range(30):
        append(second)
    append(first, id="acme/last")
    first.close()
    second.close()
    of_first = [read for path in files_in(tmp_path) if (read := read_recording(path)).head.process == "first"]
    assert [len(read.records) for read in of_first] == [200]
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= Limits().max_bytes


def test_writers_that_take_all_the_room_keep_others_out_and_say_so(tmp_path: Path) -> None:
    others = [Segments(tmp_path, f"{number}", Limits()) for number in range(8)]
    with pytest.raises(StorageFullError, match="files that servers write now take all of the 256 MB"):
        for _ in range(3):
            for segments in others:
                append(segments)
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= Limits().max_bytes
    for segments in others:
        segments.close()


@pytest.mark.parametrize("num_writers", [1, 2, 7, 12])
def test_writers_share_the_room_and_all_keep_what_they_wrote_last(tmp_path: Path, num_writers: int) -> None:
    """Each writes more than all may keep."""
    settings = TrafficSettings(max_mb=16)
    writers = [Segments(tmp_path, f"{number}", settings) for number in range(num_writers)]
    one_kb = len(records([0] * 1_000).tobytes()) / 1_000
    rounds = round(2.5 * settings.max_bytes / num_writers / (1_000 * one_kb))
    sizes = []
    for _ in range(rounds):
        for segments in writers:
            append(segments, 1_000)
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    for segments in writers:
        segments.close()
    assert max(sizes) <= settings.max_bytes
    kept = {f"{number}": 0 for number in range(num_writers)}
    for path in files_in(tmp_path):
        recording = read_recording(path)
        assert recording.damage is None
        kept[recording.head.process] += len(recording.records)
    fair = settings.max_bytes / num_writers / one_kb
    assert min(kept.values()) > 0.4 * fair and sum(kept.values()) > 0.5 * num_writers * fair


def test_old_files_go_but_not_those_that_look_young_because_the_clock_was_set_back(tmp_path: Path) -> None:
    old, future = tmp_path / "20200101T000000-00000000.traffic", tmp_path / "20990101T000000-00000000.traffic"
    for path, age_s in ((old, 31 * 86400), (future, -86400)):
        path.write_bytes(b"")
        os.utime(path, (time.time() - age_s,) * 2)
    segments = Segments(tmp_path, "p", TrafficSettings())
    append(segments)
    segments.close()
    assert not old.exists() and future.exists()


def test_a_clock_that_is_set_back_moves_the_next_file_and_no_gap(tmp_path: Path) -> None:
    wall_us = [10**15]
    began_us = now_us()
    segments = Segments(tmp_path, "p", TrafficSettings(), lambda: wall_us[0] + now_us() - began_us)
    segments.append(records([began_us, began_us + 5_000]), [entry("acme/topic")] * 2)
    wall_us[0] -= 3_600_000_000
    segments.append(records([began_us + 7_000, began_us + 9_500]), [entry("acme/topic")] * 2)
    segments.close()
    before, after = sorted((read_recording(path) for path in tmp_path.iterdir()), key=lambda one: -one.head.began_us)
    # Time may pass between a look at one clock and at the other.
    found = before.records["arrived_us"] - 10**15, after.records["arrived_us"] - 10**15 + 3_600_000_000
    assert [np.diff(each).tolist() for each in found] == [[5_000], [2_500]]
    assert [int(each[0]) for each in found] == pytest.approx([0, 7_000], abs=1_000_000)
    assert after.until_us < before.head.began_us


def test_a_file_with_records_ends_after_an_hour_and_an_empty_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path, "p", TrafficSettings())
    monkeypatch.setattr(module, "_LONGEST_US", -1)  # any file is older
    for _ in range(3):
        append(segments, count=0)
    assert len(files_in(tmp_path)) == 1
    append(segments)
    append(segments)
    assert len(files_in(tmp_path)) == 2
    monkeypatch.setattr(module, "_LONGEST_EMPTY_US", -1)
    for _ in range(2):
        append(segments, count=0)
    segments.close()
    assert len(files_in(tmp_path)) == 4, "a day later an empty one is followed, too, so that old ones go"


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "traffic", "p", TrafficSettings())
    append(segments)
    for path in files_in(tmp_path / "traffic"):
        path.unlink()
    (tmp_path / "traffic").rmdir()
    append(segments)
    segments.close()
    assert len(read_recording(files_in(tmp_path / "traffic")[0]).records) == 100


def test_only_the_owner_reads_what_was_recorded(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "traffic", "p", TrafficSettings())
    append(segments)
    segments.close()
    (path,) = files_in(tmp_path / "traffic")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_file_of_a_killed_process_is_whole_and_nobody_holds_it(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from backends.traffic.segments import Segments; from backends.traffic.settings import TrafficSettings\n"
        "from traffic_cases import entry, records\n"
        "segments = Segments(Path(sys.argv[1]), 'killed', TrafficSettings())\n"
        "segments.append(records([1] * 5), [entry('acme/topic')] * 5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False)
    (path,) = files_in(tmp_path)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(b"HPTB\x00")  # as if it had been killed in the middle of a block
    read = read_recording(path)
    assert (len(read.records), read.damage, read.head.process) == (5, None, "killed")
