from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from backends.clock import now_us
from backends.heartbeat import FOLDER_VARIABLE
from backends.scheduling.wait_forecast import (
    LENGTHS,
    MAX_TENANTS,
    ForecastReader,
    ForecastWriter,
    WaitForecast,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def test_a_row_takes_as_long_as_the_length_told_below() -> None:
    writer, reader = ForecastWriter("upper"), ForecastReader()
    writer.tell(WaitForecast([1.0, 2.0, 3.0, 5.0, 8.0], [[1000.0 * length] * 5 for length in LENGTHS]), 0)
    found = {tokens: reader.finish_us(0, tokens) for tokens in (0, 1, 7, 8, 9, 31, 32, 79, 80, 4000)}
    told = {0: 1, 1: 1, 7: 1, 8: 8, 9: 8, 31: 24, 32: 32, 79: 48, 80: 80, 4000: 80}
    assert found == {tokens: 1000 * length for tokens, length in told.items()}
    writer.close()


def test_a_row_takes_as_long_as_is_told_of_its_deadline() -> None:
    writer, reader = ForecastWriter("upper"), ForecastReader()
    curve = [10_000.0, 10_000.0, 20_000.0, 30_000.0, 130_000.0]
    writer.tell(WaitForecast([10_000.0, 20_000.0, 30_000.0, 40_000.0, 80_000.0], [curve] * len(LENGTHS)), 1_000)
    told = {None: 11_000, 11_000: 11_000, 31_000: 21_000, 81_000: 131_000, 91_000: 156_000}
    assert {due: reader.finish_us(1_000, 20, (), due) for due in told} == told
    writer.close()


def test_what_is_told_is_read_until_it_is_old() -> None:
    writer, reader = ForecastWriter("upper"), ForecastReader()
    now = 10**12
    assert reader.finish_us(now) == now, "nothing was told yet"
    writer.tell(WaitForecast.alike(250_000.0), now)
    assert reader.finish_us(now) == now + 250_000
    assert reader.finish_us(now + 100_000) == now + 250_000, "the time runs meanwhile"
    assert reader.finish_us(now + 300_000) == now + 300_000
    writer.tell(WaitForecast.alike(5_000_000.0), now)
    assert reader.finish_us(now + 1_000_001) == now + 1_000_001, "no engine said anything for a second"
    assert reader.finish_us(now - 1) == now - 1, "told on another clock"
    writer.close()
    reader.close()


def test_of_several_engines_the_freest_counts() -> None:
    one, other, reader = ForecastWriter("upper_0"), ForecastWriter("upper_1"), ForecastReader()
    one.tell(WaitForecast.alike(400_000.0), 1_000)
    other.tell(WaitForecast.alike(300_000.0), 1_000)
    assert reader.finish_us(1_000) == 301_000
    one.close()
    other.close()


def test_tenants_beyond_their_shares_are_told_apart() -> None:
    writer, reader = ForecastWriter("upper"), ForecastReader()
    writer.tell(WaitForecast.alike(100_000.0, {"flood": 400_000.0, "late": 50_000.0}), 0)
    asked = {
        (): 100_000,
        ("acme",): 100_000,
        ("flood",): 400_000,
        ("acme", "flood"): 400_000,
        ("late",): 100_000,
    }
    assert {tenants: reader.finish_us(0, 1, tenants) for tenants in asked} == asked
    many = {f"tenant{number}": 1e6 + 1000 * number for number in range(MAX_TENANTS)}
    writer.tell(WaitForecast.alike(0.0, many), 0)
    assert {tenant: reader.finish_us(0, 1, [tenant]) for tenant in (*many, "")} == {**many, "": 0}
    writer.close()


def test_an_engine_that_was_loaded_anew_between_two_looks_is_noticed() -> None:
    old, reader = ForecastWriter("upper"), ForecastReader()
    old.tell(WaitForecast.alike(1e6), 1_000)
    assert reader.finish_us(1_000) == 1_001_000
    old.close()
    new, now = ForecastWriter("upper"), 2_000_000
    new.tell(WaitForecast.alike(9e5), now)
    assert reader.finish_us(now) == now + 900_000
    new.close()
    reader.close()


def test_an_engine_that_is_gone_or_new_is_noticed(folder: Path) -> None:
    writer, reader = ForecastWriter("upper"), ForecastReader()
    writer.tell(WaitForecast.alike(1e9), 1_000)
    assert reader.finish_us(1_000) > 1_000
    writer.close()
    assert not list(folder.iterdir())
    later = 2_000_000
    assert reader.finish_us(later) == later
    writer = ForecastWriter("upper")
    writer.tell(WaitForecast.alike(9e5), 2 * later)
    assert reader.finish_us(2 * later) == 2 * later + 900_000
    writer.close()


@pytest.mark.parametrize("content", [b"", b"xyz", b"\xff" * 80])
def test_what_is_no_writer_keeps_no_row_out(folder: Path, content: bytes) -> None:
    (folder / f"hplm-backlog-{os.getppid()}-broken").write_bytes(content)
    assert ForecastReader().finish_us(5_000) == 5_000


def test_a_writer_with_any_wrong_byte_keeps_no_row_out(folder: Path) -> None:
    writer, now = ForecastWriter("upper"), 5_000
    writer.tell(WaitForecast.alike(1e8), now)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    assert ForecastReader().finish_us(now) > now
    for index in range(len(good)):
        path.write_bytes(good[:index] + bytes([good[index] ^ 1]) + good[index + 1 :])
        assert ForecastReader().finish_us(now) == now, f"byte {index}"
    path.write_bytes(good)
    assert ForecastReader().finish_us(now) > now
    writer.close()


def _tell_on_and_on(until_us: int) -> None:
    """One writer and another by turns: in each of them the tenant's rows take 100 s, in mixtures perhaps 10 s."""
    writer, of_all_us, of_tenant_us = ForecastWriter("upper"), 10_000_000.0, 100_000_000.0
    while (now := now_us()) < until_us:
        of_all_us, of_tenant_us = of_tenant_us, of_all_us
        writer.tell(WaitForecast.alike(of_all_us, {"tenant": of_tenant_us}), now)


def test_a_reader_in_another_process_never_sees_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.scheduling.wait_forecast._prefix", lambda: "hplm-backlog-1-")
    until_us = now_us() + 400_000
    process = multiprocessing.get_context("fork").Process(target=_tell_on_and_on, args=(until_us,))
    process.start()
    reader, read = ForecastReader(), set()
    while (now := now_us()) < until_us:
        reader._look_at_us = 0
        ahead = reader.finish_us(now, tenants=["tenant"]) - now
        assert ahead == 0 or 90_000_000 <= ahead <= 100_000_000
        read.add(ahead > 0)
    process.join()
    assert True in read
