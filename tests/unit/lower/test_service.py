from __future__ import annotations

import numpy as np
import pytest

from backends.clock import now_us
from backends.errors import CorruptFileError, HplmError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.lower.half import LowerHalf
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.wire import decode_tickets, unfold_rows
from tiny_home import MAX_TOKENS, sample_texts


@pytest.fixture
def service(tiny_home: Home) -> LowerService:
    return LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)))


def request(*rows: tuple[str, str], parameters: str = "") -> TextRequest:
    return TextRequest([hplm.encode() for hplm, _ in rows], [text.encode() for _, text in rows], parameters)


def test_rows_of_mixed_domains_come_back_in_their_order(service: LowerService, tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    texts = [text.text for text in sample_texts(12, seed=77)]
    ids = ["acme/topic", "globex/topic", "initech/mood"] * 4
    (result,) = service.encode([request(*zip(ids, texts, strict=True))])
    assert isinstance(result, HiddenRequest)
    tickets = decode_tickets(result.tickets)
    assert [ticket.hplm_key for ticket in tickets] == [registry.hplm(hplm).key for hplm in ids]
    rows = unfold_rows(result.hidden, [ticket.num_tokens for ticket in tickets])
    for hplm, text, row in zip(ids, texts, rows, strict=True):
        alone = LowerHalf.open(tiny_home, registry.hplm(hplm).domain).encode([text]).rows[0]
        np.testing.assert_allclose(row, alone, rtol=2e-3, atol=2e-3)


def test_bad_requests_fail_alone(service: LowerService) -> None:
    good = request(("acme/topic", "cat"))
    bad: list[tuple[TextRequest, type[HplmError], str]] = [
        (request(("acme/nothing", "cat")), NotFoundError, "'acme/nothing'"),
        (request(("acme/topic", "")), InvalidArgumentError, "empty"),
        (request(("acme/topic", " \n\t ")), InvalidArgumentError, "empty"),
        (TextRequest([b"acme/topic"], [b"a\xff"], ""), InvalidArgumentError, "UTF-8 at byte 1"),
        (TextRequest([b"\xff"], [b"cat"], ""), InvalidArgumentError, "MODEL is not UTF-8"),
        (request(("acme/topic", "cat"), parameters='{"dead_line": 5}'), InvalidArgumentError, "'dead_line'"),
        (request(("acme/topic", "cat"), parameters='{"level": "tiny"}'), InvalidArgumentError, "level 'tiny'"),
        (request(("acme/topic", "cat"), parameters='{"deadline_ms": 0}'), InvalidArgumentError, "deadline_ms"),
        (request(("acme/topic", "cat"), parameters='{"deadline_ms": "soon"}'), InvalidArgumentError, "deadline_ms"),
        (request(("acme/topic", "cat"), parameters='{"deadline_ms": true}'), InvalidArgumentError, "deadline_ms"),
    ]
    results = service.encode([part for wrong, _, _ in bad for part in (good, wrong)])
    for place, (_, kind, message) in enumerate(bad):
        assert isinstance(results[2 * place], HiddenRequest)
        error = results[2 * place + 1]
        assert isinstance(error, kind)
        assert message in str(error)
        assert "globex" not in str(error)


def test_one_bad_row_fails_its_request_and_no_other(service: LowerService) -> None:
    results = service.encode([request(("acme/topic", "cat"), ("acme/topic", "")), request(("acme/topic", "cat"))])
    assert isinstance(results[0], InvalidArgumentError)
    assert isinstance(results[1], HiddenRequest)


def test_long_names_are_shortened_in_messages(service: LowerService) -> None:
    (error,) = service.encode([request(("x" * 20_000, "cat"))])
    assert isinstance(error, NotFoundError)
    assert len(str(error)) < 300


def test_a_request_that_could_not_be_read_keeps_its_error(service: LowerService) -> None:
    error = InvalidArgumentError("unreadable")
    assert service.encode([error])[0] is error


def test_long_texts_are_marked(service: LowerService) -> None:
    (result,) = service.encode([request(("acme/topic", "cat " * 500), ("acme/topic", "cat"))])
    assert isinstance(result, HiddenRequest)
    tickets = decode_tickets(result.tickets)
    assert [(ticket.num_tokens, ticket.truncated) for ticket in tickets] == [(MAX_TOKENS, True), (3, False)]


def test_a_deadline_is_stamped_on_the_servers_clock(service: LowerService) -> None:
    (result,) = service.encode([request(("acme/topic", "cat"), parameters='{"deadline_ms": 50}')])
    assert isinstance(result, HiddenRequest)
    remaining_us = (decode_tickets(result.tickets)[0].deadline_us or 0) - now_us()
    assert 0 < remaining_us <= 50_000


def test_a_damaged_table_fails_its_own_domain_only(tiny_home: Home) -> None:
    folder = tiny_home.path / Registry.open(tiny_home).hplm("globex/topic").domain.folders[0]
    for path in folder.glob("tri.values*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)))
    service.warm_up()
    text = sample_texts(1, seed=12)[0].text
    results = service.encode([request(("globex/topic", text)), request(("acme/topic", text))])
    assert isinstance(results[0], CorruptFileError)
    assert isinstance(results[1], HiddenRequest)


def test_one_damaged_block_fails_only_the_rows_that_touch_it(tiny_home: Home) -> None:
    domain = Registry.open(tiny_home).hplm("globex/topic").domain
    folder = tiny_home.path / domain.folders[0]
    (values,) = (path for path in folder.glob("tri.values*") if path.stat().st_size > 10_000)
    content = bytearray(values.read_bytes())
    content[-1] ^= 1  # the last block: the rarest fragments
    values.write_bytes(content)
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)))
    texts = [text.text for text in sample_texts(300, seed=12)]  # the domain's own corpus
    results = service.encode([request(("globex/topic", text)) for text in texts])
    failed = [isinstance(result, CorruptFileError) for result in results]
    assert 0 < sum(failed) < len(failed)
    assert all(isinstance(result, HiddenRequest) for result, bad in zip(results, failed, strict=True) if not bad)


def test_hits_are_counted_per_level(service: LowerService) -> None:
    service.encode([request(("acme/topic", "the cat"), ("globex/topic", "the cat"))])
    assert service.statistics.total == 8
    assert set(service.statistics.counts) == {"farm@1", "street@1", "general@1", "bi", "uni"}
