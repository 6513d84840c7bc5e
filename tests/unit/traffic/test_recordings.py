"""Files of recorded traffic: what is written is read, and what is damaged, torn, foreign or newer is told apart."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from traffic_cases import records

from backends.errors import CorruptFileError, FileError, FormatVersionError, UnreadableFileError
from backends.traffic.recording import Block, Head, read_recording
from backends.traffic.records import OUTCOMES, RecordedHplm

HEAD = Head("hplm_lower_0_0", "host", 7, began_us=1_000_000)
HPLMS = RecordedHplm("acme/topic", "mini", "shop"), RecordedHplm("globex/é", "mini", "news")


def blocks(count: int = 3, each: int = 4) -> list[bytes]:
    made = []
    for number in range(count):
        rows = records([number * 100 + place for place in range(each)])
        rows["hplm"] = number % 2
        new = HPLMS[number : number + 1] if number < len(HPLMS) else ()
        made.append(Block(rows, new, lost=number, written_us=2_000_000 + number).to_bytes())
    return made


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    read = read_recording(written(tmp_path / "a", HEAD.to_bytes() + b"".join(blocks())))
    assert (read.head, read.hplms) == (HEAD, HPLMS)
    assert read.records["arrived_us"].tolist() == [100 * block + place for block in range(3) for place in range(4)]
    assert read.records["hplm"].tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert (read.until_us, read.lost, read.damage) == (2_000_002, 3, None)


def test_a_file_that_a_crash_tore_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    head, parts = HEAD.to_bytes(), blocks()
    ends = [len(head) + sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
    whole = head + b"".join(parts)
    for size in range(len(whole) + 1):
        path = written(tmp_path / "torn", whole[:size])
        if size < len(head):
            with pytest.raises(CorruptFileError, match=r"no recorded traffic|ends within its head|damaged head"):
                read_recording(path)
            continue
        read = read_recording(path)
        num_whole = sum(size >= end for end in ends) - 1
        assert (len(read.records), read.damage) == (4 * num_whole, None), f"of {size} bytes"


def test_no_changed_byte_goes_unnoticed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = HEAD.to_bytes() + b"".join(blocks())
    sound = read_recording(written(tmp_path / "whole", whole))
    for place in rng.sample(range(len(whole)), 200):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        path = written(tmp_path / "changed", bytes(changed))
        try:
            read = read_recording(path)
        except FileError as error:
            assert str(path) in str(error)
            continue
        # A block that claims to be longer than the file looks like one that was being written.
        assert read.damage is not None or len(read.records) < len(sound.records), f"byte {place}"
        assert read.records.tobytes() == sound.records[: len(read.records)].tobytes()


@pytest.mark.parametrize("content", [b"", b"HPLM", b"SQLite format 3\0" * 4, b"\0" * 100, b"HPLMTRAF" + b"\xff" * 40])
def test_a_foreign_file_is_rejected_by_name(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "foreign", content)
    with pytest.raises(FileError, match="foreign"):
        read_recording(path)


def test_a_file_of_a_newer_release_is_told_apart(tmp_path: Path) -> None:
    newer = bytearray(HEAD.to_bytes())
    newer[8:12] = struct.pack("<I", 2)
    with pytest.raises(FormatVersionError, match="has format version 2; this release reads 1"):
        read_recording(written(tmp_path / "newer", bytes(newer)))


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="absent cannot be read: No such file"):
        read_recording(tmp_path / "absent")


@pytest.mark.parametrize(("column", "value"), [("hplm", 2), ("outcome", len(OUTCOMES)), ("level", 99)])
def test_a_record_of_something_without_a_name_is_damage(tmp_path: Path, column: str, value: int) -> None:
    rows = records([1, 2])
    rows[column][1] = value
    content = HEAD.to_bytes() + Block(rows, HPLMS, 0, 0).to_bytes()
    read = read_recording(written(tmp_path / "strange", content))
    assert len(read.records) == 0 and read.damage is not None
    assert f"a record has {column} {value} of" in read.damage


def test_names_of_outcomes_and_levels_are_those_of_the_file(tmp_path: Path) -> None:
    """A later release may have others, or another order."""
    head = Head("p", "h", 1, 0, outcomes=("rejected_by_moon", "accepted"), levels=("full",))
    rows = records([1])
    rows["outcome"] = 1
    read = read_recording(written(tmp_path / "other", head.to_bytes() + Block(rows, HPLMS, 0, 0).to_bytes()))
    assert read.head.outcomes[read.records["outcome"][0]] == "accepted"
