from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from backends.clock import now_us
from backends.scheduling.backlog_signal import FOLDER_VARIABLE, BacklogReader, BacklogSignal
from backends.scheduling.outlook import TOLD_LENGTHS, TOLD_TENANTS, Outlook


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def alike(finish_in_us: float) -> Outlook:
    """The same for rows of all lengths."""
    return Outlook([finish_in_us] * len(TOLD_LENGTHS))


def test_a_row_takes_as_long_as_those_of_the_length_told_below() -> None:
    signal, reader = BacklogSignal("upper"), BacklogReader()
    signal.tell(Outlook([1000.0 * length for length in TOLD_LENGTHS]), 0)
    found = {tokens: reader.earliest_finish_us(0, tokens) for tokens in (0, 1, 7, 8, 9, 31, 32, 95, 96, 4000)}
    told = {0: 1, 1: 1, 7: 4, 8: 8, 9: 8, 31: 28, 32: 32, 95: 80, 96: 96, 4000: 128}
    assert found == {tokens: 1000 * length for tokens, length in told.items()}
    signal.close()


def test_what_is_told_is_read_until_it_is_old() -> None:
    signal, reader = BacklogSignal("upper"), BacklogReader()
    now = 10**12
    assert reader.earliest_finish_us(now) == now, "nothing was told yet"
    signal.tell(alike(250_000.0), now)
    assert reader.earliest_finish_us(now) == now + 250_000
    assert reader.earliest_finish_us(now + 100_000) == now + 250_000, "the time runs meanwhile"
    assert reader.earliest_finish_us(now + 300_000) == now + 300_000
    signal.tell(alike(5_000_000.0), now)
    assert reader.earliest_finish_us(now + 1_000_001) == now + 1_000_001, "nobody said anything for a second"
    assert reader.earliest_finish_us(now - 1) == now - 1, "told on another clock"
    signal.close()
    reader.close()


def test_of_several_engines_the_freest_counts() -> None:
    one, other, reader = BacklogSignal("upper_0"), BacklogSignal("upper_1"), BacklogReader()
    one.tell(alike(400_000.0), 1_000)
    other.tell(alike(300_000.0), 1_000)
    assert reader.earliest_finish_us(1_000) == 301_000
    one.close()
    other.close()


def test_tenants_beyond_their_shares_are_told_apart() -> None:
    signal, reader = BacklogSignal("upper"), BacklogReader()
    signal.tell(Outlook(alike(100_000.0).finish_in_us, {"flood": 400_000.0, "late": 50_000.0}), 0)
    asked = {
        (): 100_000,
        ("acme",): 100_000,
        ("flood",): 400_000,
        ("acme", "flood"): 400_000,
        ("late",): 100_000,
    }
    assert {tenants: reader.earliest_finish_us(0, 1, tenants) for tenants in asked} == asked
    many = {f"tenant{number}": 1e6 + 1000 * number for number in range(TOLD_TENANTS)}
    signal.tell(Outlook(alike(0.0).finish_in_us, many), 0)
    assert {tenant: reader.earliest_finish_us(0, 1, [tenant]) for tenant in (*many, "")} == {**many, "": 0}
    signal.close()


def test_an_engine_that_was_loaded_anew_between_two_looks_is_noticed() -> None:
    old, reader = BacklogSignal("upper"), BacklogReader()
    old.tell(alike(1e6), 1_000)
    assert reader.earliest_finish_us(1_000) == 1_001_000
    old.close()
    new, now = BacklogSignal("upper"), 2_000_000
    new.tell(alike(9e5), now)
    assert reader.earliest_finish_us(now) == now + 900_000
    new.close()
    reader.close()


def test_an_engine_that_is_gone_or_new_is_noticed(folder: Path) -> None:
    signal, reader = BacklogSignal("upper"), BacklogReader()
    signal.tell(alike(1e9), 1_000)
    assert reader.earliest_finish_us(1_000) > 1_000
    signal.close()
    assert not list(folder.iterdir())
    later = 2_000_000
    assert reader.earliest_finish_us(later) == later
    signal = BacklogSignal("upper")
    signal.tell(alike(9e5), 2 * later)
    assert reader.earliest_finish_us(2 * later) == 2 * later + 900_000
    signal.close()


@pytest.mark.parametrize("content", [b"", b"xyz", b"\xff" * 80])
def test_what_is_no_signal_keeps_nobody_out(folder: Path, content: bytes) -> None:
    (folder / f"hplm-backlog-{os.getppid()}-broken").write_bytes(content)
    assert BacklogReader().earliest_finish_us(5_000) == 5_000


def test_a_signal_with_any_wrong_byte_keeps_nobody_out(folder: Path) -> None:
    signal, now = BacklogSignal("upper"), 5_000
    signal.tell(Outlook([1e8 + 1000 * length for length in TOLD_LENGTHS]), now)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    assert BacklogReader().earliest_finish_us(now) > now
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert BacklogReader().earliest_finish_us(now) == now, f"byte {place}"
    path.write_bytes(good)
    assert BacklogReader().earliest_finish_us(now) > now
    signal.close()


def _tell_on_and_on(until_us: int) -> None:
    """One signal and another by turns: in each of them the tenant's rows take 100 s, in mixtures perhaps 10 s."""
    signal, of_all_us, of_tenant_us = BacklogSignal("upper"), 10_000_000.0, 100_000_000.0
    while (now := now_us()) < until_us:
        of_all_us, of_tenant_us = of_tenant_us, of_all_us
        signal.tell(Outlook([of_all_us] * len(TOLD_LENGTHS), {"tenant": of_tenant_us}), now)


def test_a_reader_in_another_process_never_sees_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.scheduling.backlog_signal._prefix", lambda: "hplm-backlog-1-")
    until_us = now_us() + 400_000
    process = multiprocessing.get_context("fork").Process(target=_tell_on_and_on, args=(until_us,))
    process.start()
    reader, read = BacklogReader(), set()
    while (now := now_us()) < until_us:
        reader._look_at_us = 0
        ahead = reader.earliest_finish_us(now, tenants=["tenant"]) - now
        assert ahead == 0 or 90_000_000 <= ahead <= 100_000_000
        read.add(ahead > 0)
    process.join()
    assert True in read
