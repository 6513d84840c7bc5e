from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from overlay_append import ORIGIN, keys_from, vectors_of
from plot_reference import random_table

from backends.plot import overlay as overlay_module
from backends.plot.allowance import Allowance
from backends.plot.header import Store
from backends.plot.overlay import Overlay
from backends.plot.overlay_log import LogOrigin, LogReader, overlay_folder, overlay_keys, read_uses
from backends.plot.overlay_pool import OverlayPool
from seeds import SEED
from small_disk import run_on_small_disk

POOL_BYTES = 4 << 20
ROOMY_POOL_BYTES = 256 << 20
"""So many places that of a few hundred thousand fragments no nine belong into one set of eight."""
OTHER_LAYERS = LogOrigin("b" * 32, ORIGIN.layout)


@pytest.fixture
def table_folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    random_table(rng, "farm@1", "general@1", whole=20).write(tmp_path / "farm@1")
    return tmp_path / "farm@1"


def opened(
    table_folder: Path, seat: int | None = 0, origin: LogOrigin = ORIGIN, pool_bytes: int = POOL_BYTES
) -> Overlay:
    return Overlay("farm@1/overlay", OverlayPool(pool_bytes, origin.layout), table_folder, origin, seat)


def learn(overlay: Overlay, start: int, count: int) -> None:
    keys = keys_from(start, count)
    overlay.add(keys, vectors_of(keys))


def found(overlay: Overlay, start: int, count: int) -> int:
    """How many of the fragments are there; each of them must be right."""
    keys = keys_from(start, count)
    vectors, is_there, _ = overlay.fetch(keys)
    assert np.array_equal(vectors, vectors_of(keys[is_there]))
    return int(is_there.sum())


def test_what_was_learned_is_there_after_a_restart(table_folder: Path) -> None:
    first = opened(table_folder)
    learn(first, 1, 700)
    first.sync()
    learn(first, 701, 300)
    assert found(first, 1, 2_000) == 1_000
    first.close()
    second = opened(table_folder)
    assert found(second, 1, 2_000) == 1_000
    learn(second, 1_001, 100)
    second.close()
    assert found(opened(table_folder), 1, 2_000) == 1_100


def test_processes_find_what_others_learned(table_folder: Path) -> None:
    first, second = opened(table_folder, 0), opened(table_folder, 1)
    learn(first, 1, 100)
    learn(second, 201, 100)
    for overlay in (first, second, first):
        overlay.sync()
    assert found(first, 1, 400) == found(second, 1, 400) == 200
    learn(first, 101, 50)
    first.sync()
    second.sync()
    assert found(second, 1, 400) == 250
    assert found(opened(table_folder, seat=2), 1, 400) == 250


def test_without_a_seat_nothing_is_written_but_all_is_read(table_folder: Path) -> None:
    writer, reader = opened(table_folder), opened(table_folder, seat=None)
    learn(writer, 1, 10)
    writer.sync()
    reader.sync()
    assert found(reader, 1, 10) == 10
    learn(reader, 11, 10)
    reader.close()
    assert found(opened(table_folder), 1, 20) == 10


@pytest.mark.parametrize("cut_bytes", [1, 90, 207, 208, 209])
def test_a_torn_tail_is_cut(table_folder: Path, cut_bytes: int) -> None:
    writer = opened(table_folder)
    learn(writer, 1, 20)
    writer.close()
    log = ORIGIN.log_of(overlay_folder(table_folder), 0)
    os.truncate(log, log.stat().st_size - cut_bytes)
    after = opened(table_folder)
    lost = -(-cut_bytes // ORIGIN.layout.record.itemsize)
    assert found(after, 1, 100) == 20 - lost
    learn(after, 21, 10)
    after.close()
    assert found(opened(table_folder), 1, 100) == 30 - lost


def test_a_record_that_grows_while_it_is_read_shifts_nothing(
    table_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = opened(table_folder)
    learn(writer, 1, 20)
    writer.close()
    log = ORIGIN.log_of(overlay_folder(table_folder), 0)
    content = log.read_bytes()
    log.write_bytes(content[:-300])  # eighteen whole records, and more than half of the next
    reading = LogReader(log, ORIGIN).read()
    before = next(reading)["key"]
    log.write_bytes(content)
    keys = np.concatenate([before, *(records["key"] for records in reading)])
    assert np.array_equal(keys, keys_from(1, 20))
    assert not caplog.records


def test_overlays_share_what_may_wait_to_be_written(table_folder: Path) -> None:
    pool, allowance = OverlayPool(POOL_BYTES, ORIGIN.layout), Allowance(30)
    one, other = (Overlay("farm@1/overlay", pool, table_folder, ORIGIN, seat, allowance) for seat in (0, 1))
    learn(one, 1, 20)
    learn(other, 101, 20)
    assert found(one, 1, 20) == found(other, 101, 20) == 20
    one.sync()
    other.sync()
    assert found(opened(table_folder, seat=None), 1, 1_000) == 30
    learn(one, 201, 30)  # what was written has made room
    one.close()
    learn(one, 301, 30)  # a request that was under way; this must not keep room for ever
    learn(other, 401, 30)
    other.close()
    assert found(opened(table_folder, seat=None), 1, 1_000) == 90


def test_no_flipped_byte_gives_a_wrong_vector(table_folder: Path) -> None:
    writer = opened(table_folder)
    learn(writer, 1, 30)
    writer.close()
    log = ORIGIN.log_of(overlay_folder(table_folder), 0)
    sound = log.read_bytes()
    chance = random.Random(SEED)
    for _ in range(60):
        damaged = bytearray(sound)
        damaged[chance.randrange(len(sound))] ^= 1 << chance.randrange(8)
        log.write_bytes(damaged)
        assert found(opened(table_folder), 1, 100) in (0, 29)  # the header, or one record


def test_a_log_of_other_layers_is_ignored_and_stays(table_folder: Path) -> None:
    other = opened(table_folder, origin=OTHER_LAYERS)
    learn(other, 1, 30)
    other.close()
    ours = opened(table_folder)
    assert found(ours, 1, 30) == 0
    learn(ours, 31, 10)
    ours.sync()
    other.sync()
    assert found(other, 31, 10) == 0
    ours.close()
    assert found(opened(table_folder), 1, 100) == 10
    assert found(opened(table_folder, origin=OTHER_LAYERS), 1, 100) == 30
    assert overlay_keys(table_folder, ORIGIN.layout.key).keys.size == 40


@pytest.mark.parametrize("origin", [ORIGIN, OTHER_LAYERS], ids=["its own layers", "other layers"])
def test_a_log_of_an_earlier_release_goes_on(table_folder: Path, origin: LogOrigin) -> None:
    writer = opened(table_folder, origin=origin)
    learn(writer, 1, 30)
    for _ in range(20):
        assert found(writer, 1, 30) == 30
    writer.close()
    log = origin.log_of(overlay_folder(table_folder), 0)
    for path in (log, log.with_suffix(".uses")):
        path.rename(path.with_name(f"0{path.suffix}"))
    other = opened(table_folder, seat=1)
    is_own = origin == ORIGIN
    assert found(other, 1, 100) == (30 if is_own else 0)
    assert not log.exists()
    ours = opened(table_folder)
    assert log.exists() is is_own
    assert found(ours, 1, 100) == (30 if is_own else 0)
    ours.close()
    assert not is_own or uses_on_disk(table_folder, ORIGIN) > 20  # though it has learned nothing
    learn(again := opened(table_folder), 31, 10)
    again.close()
    assert found(opened(table_folder), 1, 100) == (40 if is_own else 10)
    assert overlay_keys(table_folder, ORIGIN.layout.key).keys.size == 40


def test_what_was_used_with_other_layers_was_noted_by_no_other_process(table_folder: Path) -> None:
    other = opened(table_folder, origin=OTHER_LAYERS)
    learn(other, 1, 30)
    for _ in range(20):
        assert found(other, 1, 30) == 30
    other.close()
    noted = [uses_on_disk(table_folder, OTHER_LAYERS)]
    for _ in range(2):
        ours = opened(table_folder)
        learn(ours, 1, 30)
        for _ in range(20):
            assert found(ours, 1, 30) == 30
        ours.close()
        noted.append(uses_on_disk(table_folder, ORIGIN))
    assert noted[0] >= 20 and noted[1] >= 20 and noted[2] > noted[1]
    assert uses_on_disk(table_folder, OTHER_LAYERS) == noted[0]


def uses_on_disk(table_folder: Path, origin: LogOrigin) -> int:
    """How often the process with seat 0 has noted the first fragments, at least."""
    path = origin.log_of(overlay_folder(table_folder), 0).with_suffix(".uses")
    return int(read_uses(path, origin.layout.key).uses_of(keys_from(1, 30)).min())


@pytest.mark.parametrize("content", [b"", b"x", b"HPLMOVL1" + bytes(300), os.urandom(5_000)])
def test_garbage_in_the_folder_does_no_harm(table_folder: Path, content: bytes) -> None:
    overlay_folder(table_folder).mkdir()
    own, old = ORIGIN.log_of(overlay_folder(table_folder), 0), overlay_folder(table_folder) / "7.log"
    for path in (own, old, own.with_suffix(".uses"), old.with_suffix(".uses"), old.with_name("notes.txt")):
        path.write_bytes(content)
    overlay = opened(table_folder)
    learn(overlay, 1, 30)
    overlay.close()
    assert found(opened(table_folder), 1, 100) == 30


@pytest.mark.parametrize("broken", ["file in place of the folder", "folder in place of the log"])
def test_where_nothing_can_be_written_it_goes_on_and_says_so_once(
    table_folder: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = overlay_folder(table_folder)
    if broken == "file in place of the folder":
        folder.write_text("")
    else:
        ORIGIN.log_of(folder, 0).mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        overlay = opened(table_folder)
        for start in range(1, 200, 20):
            learn(overlay, start, 20)
            overlay.sync()
    assert found(overlay, 1, 200) == 200
    overlay.close()
    assert len(caplog.records) == 1
    assert "goes on without" in caplog.text


def test_a_full_disk_costs_only_what_came_after(table_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on the size of one file is what a full disk looks like; a child process hits it."""
    script = (
        "import resource, signal, sys; from pathlib import Path; sys.path[:0] = sys.argv[2:];"
        "sys.dont_write_bytecode = True;"  # or modules that are compiled first here would be cut short for good
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000));"
        "from test_plot_overlay import *; overlay = opened(Path(sys.argv[1]))\n"
        "for start in range(1, 400, 20): learn(overlay, start, 20); overlay.sync()\n"
        "assert found(overlay, 1, 400) == 400; overlay.close()"
    )
    here, tests = Path(__file__).parent, Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(table_folder), str(here), str(tests)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("goes on without keeping on disk what it learns: ") == 1
    kept = found(opened(table_folder), 1, 400)
    assert 20 <= kept < 60


ON_A_SMALL_DISK = """
from pathlib import Path
import shutil
from overlay_append import keys_from, vectors_of
from test_plot_overlay import found, learn, opened
disk = Path(sys.argv[1])
shutil.copytree({table!r}, disk / "farm@1")
overlay = opened(disk / "farm@1")
learn(overlay, 1, 20)
overlay.sync()
filler = (disk / "filler").open("wb", buffering=0)
try:
    while True:
        filler.write(bytes(1024))
except OSError as error:
    assert error.errno == 28
for start in range(21, 2001, 20):
    learn(overlay, start, 20)
    overlay.sync()
assert found(overlay, 1, 2000) == 2000
filler.truncate(0)
learn(overlay, 2001, 20)
overlay.sync()
overlay.close()
again = opened(disk / "farm@1")
assert found(again, 2001, 20) == 20 and found(again, 1, 20) == 20
"""


def test_on_a_full_disk_it_learns_in_memory_and_writes_once_there_is_room(table_folder: Path, tmp_path: Path) -> None:
    told = run_on_small_disk(ON_A_SMALL_DISK.format(table=str(table_folder)), tmp_path / "disk", 256)
    (line,) = told.splitlines()
    log = ORIGIN.log_of(overlay_folder(tmp_path / "disk" / "farm@1"), 0)
    assert line.endswith(f"goes on without keeping on disk what it learns: {log}: no space left on the disk")


def test_a_small_bound_keeps_the_log_small_and_hot_fragments_over_a_restart(
    table_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_module, "_COMPACT_ABOVE_BYTES", 100_000)
    record_bytes = ORIGIN.layout.record.itemsize
    pool_bytes = 200 * OverlayPool(POOL_BYTES, ORIGIN.layout).row_bytes
    overlay = opened(table_folder, pool_bytes=pool_bytes)
    learn(overlay, 1, 50)
    for start in range(1_000, 6_000, 50):
        learn(overlay, start, 50)
        assert found(overlay, 1, 50) > 30
        overlay.sync()
    hot = found(overlay, 1, 50)
    overlay.close()
    log = ORIGIN.log_of(overlay_folder(table_folder), 0)
    assert log.stat().st_size < 100_000 + 60 * record_bytes
    assert found(opened(table_folder, pool_bytes=pool_bytes), 1, 50) > 0.8 * hot


def test_keys_with_their_uses_can_be_asked_for(table_folder: Path) -> None:
    assert overlay_keys(table_folder, Store.TRI.key_dtype).keys.size == 0
    first, second = opened(table_folder, 0), opened(table_folder, 1)
    learn(first, 1, 30)
    learn(second, 21, 20)
    for _ in range(5):
        assert found(first, 1, 1) == 1
    first.close()
    second.sync()
    learned = overlay_keys(table_folder, Store.TRI.key_dtype)
    assert np.array_equal(learned.keys, keys_from(1, 40))
    assert learned.uses[0] >= 6
    assert (learned.uses[1:] >= 1).all()
    assert learned.uses[1:].max() < 6


def test_restarts_do_not_count_uses_again(table_folder: Path) -> None:
    for seat in range(4):
        overlay = opened(table_folder, seat)
        learn(overlay, 100 * seat + 1, 10)
        overlay.close()
    before = overlay_keys(table_folder, Store.TRI.key_dtype)
    for _ in range(6):
        overlays = [opened(table_folder, seat) for seat in range(4)]
        for overlay in overlays:
            overlay.close()
    after = overlay_keys(table_folder, Store.TRI.key_dtype)
    assert np.array_equal(after.keys, before.keys)
    assert (after.uses <= before.uses + 4).all()  # a process may note one use of what it found beside its own


def test_nothing_is_written_beside_a_table_that_was_deleted(table_folder: Path) -> None:
    overlay = opened(table_folder)
    learn(overlay, 1, 30)
    table_folder.rename(table_folder.with_name("gone"))
    overlay.sync()
    overlay.close()
    assert not overlay_folder(table_folder).exists()


def test_kill_at_any_time_never_gives_a_wrong_vector(table_folder: Path) -> None:
    """Two processes learn and share at once; each is killed and started again."""
    chance = random.Random(SEED)
    promised: dict[int, int] = {}
    for _ in range(2):
        children = [_child(table_folder, seat) for seat in (0, 1)]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        time.sleep(chance.uniform(0.1, 0.4))
        for seat, child in enumerate(children):
            child.send_signal(signal.SIGKILL)
            output = child.communicate(timeout=20)[0].split()
            promised[seat] = max([promised.get(seat, 0), *(int(line) for line in output[:-1])])
        survivor = opened(table_folder, seat=None, pool_bytes=ROOMY_POOL_BYTES)
        for seat in (0, 1):
            start = 1_000_000 * (seat + 1)
            assert found(survivor, start, 20_000) >= min(promised[seat] - start, 20_000)


def _child(table_folder: Path, seat: int) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("overlay_append.py")
    command = [sys.executable, str(script), str(table_folder), str(seat), str(ROOMY_POOL_BYTES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
