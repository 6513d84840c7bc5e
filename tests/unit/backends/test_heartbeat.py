"""Heartbeats in their file, and which loops beat: all that run, also idle ones; not one that hangs."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backends.clock import now_us
from backends.draining import begin_draining, is_draining
from backends.engine import job_queue, loop
from backends.engine.loop import LOOPS
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.heartbeat import Heartbeat, Pulse, adopt_beat, read_pulses
from backends.home import Home
from backends.lower import encode_queue
from backends.lower.encode_queue import EncodeQueue
from backends.lower.fragments import even_parts
from backends.lower.service import LowerService
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import Capacity
from backends.server_folder import FOLDER_VARIABLE
from served_engine import ask, hold_runs, keys_of
from waiting import LIMIT_S, wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for module in (job_queue, loop, encode_queue):
        monkeypatch.setattr(module, "BEAT_EVERY_S", 0.01)
    return tmp_path


@pytest.fixture
def engine(tiny_home: Home, folder: Path) -> Iterator[UpperService]:
    heartbeat = Heartbeat("upper", LOOPS)
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    settings = StackSettings(dtype="fp32", num_slots=4)
    service = UpperService(tiny_home, snapshot, settings, Capacity(max_adapters=3), beat_of=heartbeat.beat_of)
    yield service
    service.close()
    snapshot.close()
    heartbeat.close()


def pulse(folder: Path) -> Pulse:
    (only,) = read_pulses(folder)
    return only


def beaten_since(folder: Path, since_us: int) -> set[str]:
    return {name for name, beat_us in pulse(folder).beats_us.items() if beat_us > since_us}


def test_what_is_written_is_read(folder: Path) -> None:
    heartbeat, before = Heartbeat("upper_0_0", ("stage", "run")), now_us()
    time.sleep(0.002)
    heartbeat.beat_of("run")()
    heartbeat.begin_requests(3)
    heartbeat.end_requests()
    read = pulse(folder)
    assert (read.process, read.pid, read.num_open, read.num_ended) == ("upper_0_0", os.getpid(), 2, 1)
    assert read.beats_us["run"] > read.beats_us["stage"]
    loop_name, silent_s = read.silent_s(before + 5_000_000)
    assert loop_name == "stage" and silent_s == pytest.approx((before + 5_000_000 - read.beats_us["stage"]) / 1e6)
    assert (folder / "hplm-heartbeat-upper_0_0").stat().st_mode & 0o777 == 0o600
    heartbeat.close()
    assert pulse(folder).beats_us == read.beats_us, "a process that has ended is silent, and not forgotten"


def test_a_process_that_is_made_anew_does_not_go_on_with_the_old_file(folder: Path) -> None:
    old, new = Heartbeat("lower", ("encode",)), Heartbeat("lower", ("encode",))
    old.begin_requests()
    assert pulse(folder).num_open == 0
    old.close()
    new.close()


def test_a_file_of_an_earlier_release_is_read(folder: Path) -> None:
    """It has room for a fourth loop; and that release reads those of this one."""
    earlier = struct.Struct("=3q4q16s16s16s16s")
    written = earlier.pack(7, 2, 3, 5, 6, 7, 0, b"stage", b"run", b"answer", b"")
    (folder / "hplm-heartbeat-upper").write_bytes(written)
    assert pulse(folder) == Pulse("upper", 7, 2, 0, {"stage": 5, "run": 6, "answer": 7})
    heartbeat = Heartbeat("upper", LOOPS)
    heartbeat.begin_requests(2)
    pid, num_open, num_loops, *_, first, second, third, _ = earlier.unpack(
        (folder / "hplm-heartbeat-upper").read_bytes()
    )
    assert (pid, num_open, num_loops) == (os.getpid(), 2, 3)
    assert [name.rstrip(b"\0").decode() for name in (first, second, third)] == list(LOOPS)
    heartbeat.close()


def test_unfinished_files_and_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "hplm-heartbeat-upper").write_bytes(b"")
    (folder / "hplm-heartbeat-lower").write_bytes(bytes(120))
    assert list(read_pulses(folder)) == []
    monkeypatch.delenv(FOLDER_VARIABLE)
    Heartbeat("free", ("run",)).beat_of("run")()
    assert len(list(folder.iterdir())) == 2


def test_the_sign_of_draining_is_that_of_one_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_draining()
    begin_draining(folder)
    assert is_draining()
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert not is_draining()


def test_idle_loops_of_the_engine_beat(engine: UpperService, folder: Path) -> None:
    for _ in range(2):
        since = now_us()
        wait_until(lambda since=since: beaten_since(folder, since) == set(LOOPS))


def test_a_loop_that_hangs_is_silent_while_the_others_beat(
    engine: UpperService, folder: Path, tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = hold_runs(monkeypatch)
    answers = ask(engine, [keys_of(tiny_home)["acme/topic"]])
    begun.get(timeout=LIMIT_S)
    since = now_us()
    wait_until(lambda: beaten_since(folder, since) == {"stage", "answer"})
    time.sleep(0.05)
    assert "run" not in beaten_since(folder, since)
    go.set()
    answers.get(timeout=LIMIT_S)
    wait_until(lambda: beaten_since(folder, since) == set(LOOPS))


def test_a_batch_beats_between_its_layers(
    engine: UpperService, folder: Path, tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[int] = []
    run, pool = UpperStack.run, engine._compute_pool

    def counted(stack: UpperStack, *args: object) -> object:
        monkeypatch.setattr(pool, "beat", lambda: beats.append(now_us()))
        return run(stack, *args)

    monkeypatch.setattr(UpperStack, "run", counted)
    ask(engine, [keys_of(tiny_home)["acme/topic"]]).get(timeout=LIMIT_S)
    assert len(beats) >= 2


def test_a_loop_beats_while_it_computes_many_fragments_and_no_other_thread_does() -> None:
    beats, ids = list[int](), torch.zeros(1000, 3, dtype=torch.int64)

    def work() -> None:
        adopt_beat(lambda: beats.append(1))
        assert sum(len(part) for part in even_parts(ids)) == len(ids)

    loop_thread = threading.Thread(target=work)
    loop_thread.start()
    loop_thread.join()
    assert len(beats) == 6
    list(even_parts(ids))
    assert len(beats) == 6


def test_the_loop_of_the_lower_model_beats_while_idle(tiny_home: Home, folder: Path) -> None:
    heartbeat = Heartbeat("lower", ("encode",))
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = LowerService(tiny_home, snapshot)
    queue = EncodeQueue(service, beat=heartbeat.beat_of("encode"))
    since = now_us()
    wait_until(lambda: beaten_since(folder, since) == {"encode"})
    queue.close()
    service.close()
    snapshot.close()
    since = now_us()
    time.sleep(0.05)
    assert not beaten_since(folder, since), "a loop that has ended is silent"
    heartbeat.close()
