"""What the engine cannot answer in time is refused before anything is done for it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.clock import now_us
from backends.errors import CorruptFileError
from backends.home import Home
from backends.lower import service as service_module
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing
from backends.plot.header import Store
from backends.plot.table import StoreReader, Table
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.tokenizer import RootTokenizer
from backends.scheduling.rejection import RejectedError, Rejection
from backends.scheduling.wait_forecast import LENGTHS, ForecastWriter, WaitForecast
from backends.server_folder import FOLDER_VARIABLE
from backends.wire import decode_tickets

SOON, BEYOND_US = '{"deadline_ms": 10000}', 20_000_000.0
"""A deadline, and a time to an answer that misses it."""


@pytest.fixture
def signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForecastWriter]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    signal = ForecastWriter("upper")
    yield signal
    signal.close()


@pytest.fixture
def at_us(monkeypatch: pytest.MonkeyPatch) -> int:
    """When everything happens: time stands still for deadlines."""
    at_us = now_us()
    monkeypatch.setattr(service_module, "now_us", lambda: at_us)
    return at_us


@pytest.fixture
def service(built_home: Home, signal: ForecastWriter) -> Iterator[LowerService]:
    snapshot = RegistrySnapshot(Registry.open(built_home))
    # Nothing is written into the home that all tests share.
    service = LowerService(built_home, snapshot, FillingSettings(Missing.FALLBACK))
    service.warm_up()
    yield service
    service.close()
    snapshot.close()


def by_length(finish_in_us: list[float]) -> WaitForecast:
    """The same for all deadlines."""
    return WaitForecast([1.0, 2.0, 3.0, 5.0, 8.0], [[in_us] * 5 for in_us in finish_in_us])


def ask(service: LowerService, *parameters: str) -> list[HiddenRequest | Exception]:
    return service.encode([TextRequest([b"acme/topic"], [b"the cat is lovely"], each) for each in parameters])


def test_only_what_would_be_late_is_refused(
    service: LowerService, signal: ForecastWriter, at_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, never = '{"deadline_ms": 60000}', ""
    assert all(isinstance(one, HiddenRequest) for one in ask(service, SOON, later, never)), "nothing was told yet"
    signal.tell(WaitForecast.alike(BEYOND_US), at_us)
    refused, *served = ask(service, SOON, later, never)
    assert isinstance(refused, RejectedError) and refused.reason is Rejection.PREDICTED_LATE
    assert re.search(r"predicted to be answered in \d+ ms; the deadline is in \d+ ms", str(refused))
    assert all(isinstance(one, HiddenRequest) for one in served)
    assert service.refusals == {Rejection.PREDICTED_LATE: 1}
    signal.tell(WaitForecast.alike(BEYOND_US), at_us - 1_100_000)
    assert all(isinstance(one, HiddenRequest) for one in ask(service, SOON, later, never)), "the engine fell silent"

    signal.tell(WaitForecast.alike(BEYOND_US), at_us)

    def fail(*_: object) -> None:
        raise AssertionError("a refused request was tokenised")

    monkeypatch.setattr(RootTokenizer, "encode", fail)
    assert isinstance(ask(service, SOON)[0], RejectedError)


def test_requests_that_name_no_deadline_have_the_shortest_default_of_their_hplms(
    service: LowerService, at_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_us = {"acme/topic": 50_000_000, "acme/mood": 40_000_000}
    monkeypatch.setattr(HplmEntry, "default_deadline_us", property(lambda entry: default_us.get(entry.id)))

    def left_us(parameters: str, *hplms: bytes) -> int:
        (found,) = service.encode([TextRequest(hplms, [b"the cat is lovely"] * len(hplms), parameters)])
        assert isinstance(found, HiddenRequest), found
        (deadline_us,) = {one.ticket.deadline_us for one in decode_tickets(found.tickets)}
        assert deadline_us is not None
        return deadline_us - at_us

    assert left_us("", b"acme/topic") == 50_000_000
    assert left_us("", b"acme/topic", b"acme/mood") == 40_000_000
    assert left_us('{"deadline_ms": 60000}', b"acme/topic") == 60_000_000


def test_long_rows_are_refused_by_the_words_that_they_have_at_least(
    service: LowerService, signal: ForecastWriter, at_us: int
) -> None:
    """Where the engine answers short rows first; one row that is too long refuses its whole request.

    A row has a token at its beginning and one at its end beside its words.
    """
    signal.tell(by_length([0.0 if length < 24 else BEYOND_US for length in LENGTHS]), at_us)
    texts = [[b"the cat " * 10], [b"the cat " * 11], [b"lovely", b"the cat " * 11], [b"the\tcat\n" * 11]]
    found = service.encode([TextRequest([b"acme/topic"] * len(one), one, SOON) for one in texts])
    assert [isinstance(one, RejectedError) for one in found] == [False, True, True, True]


def test_a_damaged_domain_is_said_to_be_damaged_with_a_deadline_too(
    service: LowerService, signal: ForecastWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise CorruptFileError("table.bin is too short")

    monkeypatch.setattr(service.domains, "opened", damaged)
    signal.tell(WaitForecast.alike(0.0), now_us())
    without, with_deadline = ask(service, "", '{"deadline_ms": 60000}')
    assert isinstance(without, Exception) and str(without) == str(with_deadline)
    assert "the table of this hPLM is" in str(with_deadline)


def test_a_text_that_is_cut_counts_no_more_tokens_than_are_left_of_it(
    service: LowerService, signal: ForecastWriter, at_us: int
) -> None:
    domain = service._snapshot.find("acme/topic").domain
    cut_at = service.domains.lower_model(domain).max_tokens
    assert cut_at < LENGTHS[-1]
    signal.tell(by_length([0.0 if length <= cut_at else BEYOND_US for length in LENGTHS]), at_us)
    request = TextRequest([b"acme/topic"], [b"the cat " * 500], SOON)
    assert isinstance(service.encode([request])[0], HiddenRequest)


def test_a_tenant_beyond_its_share_is_refused_alone(service: LowerService, signal: ForecastWriter, at_us: int) -> None:
    """Requests of tenants that the engine says are far behind, and no others."""
    signal.tell(WaitForecast.alike(0.0, {"globex": BEYOND_US}), at_us)
    assert isinstance(ask(service, SOON)[0], HiddenRequest)
    signal.tell(WaitForecast.alike(0.0, {"globex": BEYOND_US, "acme": BEYOND_US}), at_us)
    refused, patient = ask(service, SOON, '{"deadline_ms": 60000}')
    assert isinstance(refused, RejectedError) and isinstance(patient, HiddenRequest)


def test_a_request_whose_deadline_has_passed_is_told_so(service: LowerService, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when requests of the same call before it took longer to check than its deadline allows."""
    monkeypatch.setattr(
        service.times, "deadline_us", lambda in_us: now_us() - 1 if in_us < 200_000 else now_us() + in_us
    )
    late, on_time = ask(service, '{"deadline_ms": 100}', '{"deadline_ms": 60000}')
    assert isinstance(late, RejectedError) and late.reason is Rejection.LATE_ON_ARRIVAL
    assert "passed on the way" in str(late)
    assert isinstance(on_time, HiddenRequest)


@pytest.mark.usefixtures("at_us")
def test_rows_are_refused_while_a_slow_disk_would_make_them_late(
    service: LowerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without deadline wait for the disk; a row that it would make late is rejected, until it is fast."""
    read, perf_counter, slow_s = Table.store, time.perf_counter, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: perf_counter() + slow_s)

    def slow_read(table: Table, store: Store) -> StoreReader:
        nonlocal slow_s
        slow_s += 20.0
        return read(table, store)

    never = ""
    for _ in range(10):
        ask(service, never)
    assert isinstance(ask(service, SOON)[0], HiddenRequest)
    with monkeypatch.context() as patched:
        patched.setattr(Table, "store", slow_read)
        for _ in range(20):
            assert isinstance(ask(service, never)[0], HiddenRequest)
        refused = ask(service, SOON)[0]
        assert isinstance(refused, RejectedError) and refused.reason is Rejection.PREDICTED_LATE
    for _ in range(60):
        if isinstance(ask(service, SOON)[0], HiddenRequest):
            return
    raise AssertionError("the row was rejected for ever")
