from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from backends.clock import now_us
from backends.errors import CorruptFileError, ErrorCode, HplmError, InvalidArgumentError, NotFoundError, UnusableError
from backends.home import Home
from backends.lower import domains
from backends.lower import service as service_module
from backends.lower.model import LowerModel
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder
from backends.root.tokenizer import RootTokenizer
from backends.wire import decode_tickets, unfold_rows
from bench.kit.tiny_home import MAX_TOKENS, ignore, sample_texts, write_corpus
from builder.construct.domain.domains import create_domain
from short_requests import new_domain

FALLBACK = FillingSettings(Missing.FALLBACK)


@pytest.fixture
def service(tiny_home: Home) -> LowerService:
    return LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)), FALLBACK)


def request(*rows: tuple[str, str], parameters: str = "") -> TextRequest:
    return TextRequest([hplm.encode() for hplm, _ in rows], [text.encode() for _, text in rows], parameters)


def test_rows_of_mixed_domains_come_back_in_their_order(service: LowerService, tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    texts = [text.text for text in sample_texts(12, seed=77)]
    ids = ["acme/topic", "globex/topic", "initech/mood"] * 4
    (result,) = service.encode([request(*zip(ids, texts, strict=True))])
    assert isinstance(result, HiddenRequest)
    tickets = [one.ticket for one in decode_tickets(result.tickets)]
    assert [ticket.hplm_key for ticket in tickets] == [registry.hplm(hplm).key for hplm in ids]
    rows = unfold_rows(result.hidden, [ticket.num_tokens for ticket in tickets])
    for hplm, text, row in zip(ids, texts, rows, strict=True):
        alone = LowerModel.open(tiny_home, registry.hplm(hplm).domain).encode([text]).rows[0]
        np.testing.assert_allclose(row, alone, rtol=2e-3, atol=2e-3)


def test_only_rows_that_may_lose_words_say_where_these_begin(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    live = registry.hplm("acme/topic")
    ladder = {"after": 1, "layers": 2, "answered_early": 0.5, "kept_tokens": 0.7, "pruned_by": "attention"}
    metrics = {"levels": ["early", "full"], "ladder": ladder}
    registry.publish_hplm(live.id, live.domain, live.task, live.labels, "bank/x", metrics)
    service = LowerService(tiny_home, RegistrySnapshot(registry), FALLBACK)
    text = sample_texts(1, seed=3)[0].text
    both, in_full = service.encode(
        [
            request(("acme/topic", text), ("globex/topic", text)),
            request(("acme/topic", text), parameters='{"level": "full"}'),
        ]
    )
    assert isinstance(both, HiddenRequest) and isinstance(in_full, HiddenRequest)
    tokenizer = RootFolder(tiny_home.root("tiny")).tokenizer()
    marks = tokenizer.word_marks(tokenizer.encode([text]).token_ids)
    assert both.words == [marks.tobytes(), b""] and in_full.words == [b""]


def test_bad_requests_fail_alone(service: LowerService) -> None:
    good = request(("acme/topic", "cat"))
    bad: list[tuple[TextRequest, type[HplmError], str]] = [
        (request(("acme/nothing", "cat")), NotFoundError, "'acme/nothing'"),
        (request(), InvalidArgumentError, "at least one row"),
        (request(("acme/topic", "")), InvalidArgumentError, "empty"),
        (request(("acme/topic", " \n\t ")), InvalidArgumentError, "empty"),
        (TextRequest([b"acme/topic"], [b"a\xff"], ""), InvalidArgumentError, "UTF-8 at byte 1"),
        (TextRequest([b"\xff"], [b"cat"], ""), InvalidArgumentError, "MODEL is not UTF-8"),
        (TextRequest([b"acme/topic"], [b"\xffat"], ""), InvalidArgumentError, "shorter than its length says"),
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


@pytest.mark.parametrize("level", ["early", "students", "students-1", "students-8"])
def test_a_level_that_an_hplm_lacks_is_an_error_before_anything_is_tokenised(
    service: LowerService, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a request for no level of its hPLM was tokenised")

    monkeypatch.setattr(RootTokenizer, "encode", fail)
    (error,) = service.encode([request(("acme/topic", "cat"), parameters=f'{{"level": "{level}"}}')])
    assert isinstance(error, InvalidArgumentError)
    assert f"hPLM 'acme/topic' has no level '{level}'; it has full" in str(error)


def test_one_bad_row_fails_its_request_and_no_other(service: LowerService) -> None:
    results = service.encode([request(("acme/topic", "cat"), ("acme/topic", "")), request(("acme/topic", "cat"))])
    assert isinstance(results[0], InvalidArgumentError)
    assert isinstance(results[1], HiddenRequest)


def test_a_defect_while_a_request_is_folded_fails_no_other(
    service: LowerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = service_module.fold_rows

    def fails_on_two(rows: list[np.ndarray]) -> np.ndarray:
        if len(rows) == 2:
            raise ValueError("a defect")
        return fold(rows)

    monkeypatch.setattr(service_module, "fold_rows", fails_on_two)
    one = ("acme/topic", "cat")
    results = service.encode([request(one), request(one, one), request(one)])
    assert [isinstance(result, HiddenRequest) for result in results] == [True, False, True]


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
    tickets = [one.ticket for one in decode_tickets(result.tickets)]
    assert [(ticket.num_tokens, ticket.truncated) for ticket in tickets] == [(MAX_TOKENS, True), (3, False)]


def test_a_deadline_is_stamped_on_the_servers_clock(service: LowerService) -> None:
    (result,) = service.encode([request(("acme/topic", "cat"), parameters='{"deadline_ms": 60000}')])
    assert isinstance(result, HiddenRequest)
    remaining_us = (decode_tickets(result.tickets)[0].ticket.deadline_us or 0) - now_us()
    assert 0 < remaining_us <= 60_000_000


def test_a_damaged_table_fails_its_own_domain_only(tiny_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_home.path / Registry.open(tiny_home).hplm("globex/topic").domain.folders[0]
    for path in folder.glob("tri.values*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)), FALLBACK)
    service.warm_up()
    text = sample_texts(1, seed=12)[0].text
    results = service.encode([request(("globex/topic", text)), request(("acme/topic", text))])
    assert isinstance(results[0], UnusableError)
    assert str(results[0]) == "the table of this hPLM is damaged"
    assert str(folder) in caplog.text
    assert isinstance(results[1], HiddenRequest)


def test_a_root_that_cannot_be_opened_is_read_once(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows of whatever domains ask for it: whoever waits behind them is another tenant."""
    opened: list[Path] = []

    def damaged(folder: RootFolder) -> None:
        opened.append(folder.path)
        raise CorruptFileError("aggregation.safetensors is too short")

    monkeypatch.setattr(domains, "RootFront", damaged)
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)), FALLBACK)
    for _ in range(3):
        rows = [("acme/topic", "the cat"), ("globex/topic", "the cat")] * 9
        for result in service.encode([request(*rows, parameters='{"deadline_ms": 60000}'), request(*rows)]):
            assert str(result) == "the table of this hPLM is damaged"
    assert len(opened) == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("part", ["RootFront", "Table"])
def test_what_the_disk_fails_to_read_is_asked_for_once_and_told_so(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, part: str, code: int
) -> None:
    reads: list[str] = []

    def unreadable(*_: object) -> None:
        reads.append(part)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(domains, part, SimpleNamespace(open=unreadable) if part == "Table" else unreadable)
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)), FALLBACK)
    for _ in range(3):
        (error,) = service.encode([request(("acme/topic", "the cat"))])
        assert isinstance(error, UnusableError) and error.code is ErrorCode.UNAVAILABLE
        assert str(error) == "the table of this hPLM is unreadable at present"
    assert len(reads) == 1


@pytest.fixture
def pond(tiny_home: Home, tmp_path: Path) -> DomainEntry:
    """A domain that no hPLM is on yet."""
    corpus = write_corpus(tmp_path / "pond.txt", 200, seed=5)
    return create_domain(tiny_home, Registry.open(tiny_home), new_domain("pond", "tiny", (corpus,)), ignore)


def publish_on(domain: DomainEntry, registry: Registry) -> None:
    live = registry.hplm("globex/topic")
    registry.publish_hplm("new/topic", domain, live.task, live.labels, live.folder, live.metrics)


def test_a_new_domain_is_open_before_its_first_request(
    tiny_home: Home, pond: DomainEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = LowerService(tiny_home, snapshot, FALLBACK)
    publish_on(pond, Registry.open(tiny_home))
    snapshot.refresh()

    def refused(*_: object) -> Table:
        raise AssertionError("a request opens a table")

    monkeypatch.setattr(Table, "open", refused)
    (result,) = service.encode([request(("new/topic", "cat"))])
    assert isinstance(result, HiddenRequest)
    service.close()


def test_requests_to_open_domains_do_not_wait_for_one_that_is_opened(
    tiny_home: Home, pond: DomainEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    service = LowerService(tiny_home, snapshot, FALLBACK)
    service.warm_up()
    is_opening, may_open = threading.Event(), threading.Event()
    open_table = Table.open

    def slow(folder: Path, root_fingerprint: str) -> Table:
        if folder.name == "pond@1":
            is_opening.set()
            assert may_open.wait(60)
        return open_table(folder, root_fingerprint)

    monkeypatch.setattr(Table, "open", slow)
    publish_on(pond, Registry.open(tiny_home))
    with ThreadPoolExecutor(1) as elsewhere:
        try:
            assert is_opening.wait(30)
            (result,) = elsewhere.submit(service.encode, [request(("acme/topic", "cat"))]).result(30)
            assert isinstance(result, HiddenRequest)
            with pytest.raises(NotFoundError):
                snapshot.find("new/topic")
        finally:
            may_open.set()
    snapshot.refresh()
    assert snapshot.find("new/topic").domain.label == "pond@1"
    service.close()


def test_tables_that_do_not_belong_together_are_named_to_operators_only(
    tiny_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """The names of domains are other tenants' business."""
    registry = Registry.open(tiny_home)
    live, folders = registry.hplm("globex/topic"), registry.domain("tiny", "farm").folders
    wrong = registry.publish_domain(
        "tiny", "odd", "plots/tiny/odd@1", None, {}, folders=(live.domain.folders[0], *folders)
    )
    registry.publish_hplm(live.id, wrong, live.task, live.labels, live.folder, live.metrics)
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)), FALLBACK)
    results = service.encode([request(("globex/topic", "cat")), request(("acme/topic", "cat"))])
    assert str(results[0]) == "the table of this hPLM is damaged"
    assert "the parent of table street@1 is general@1, not farm@1" in caplog.text
    assert isinstance(results[1], HiddenRequest)


def test_one_damaged_block_fails_only_the_rows_that_touch_it(tiny_home: Home) -> None:
    domain = Registry.open(tiny_home).hplm("globex/topic").domain
    folder = tiny_home.path / domain.folders[0]
    (values,) = (path for path in folder.glob("tri.values*") if path.stat().st_size > 10_000)
    content = bytearray(values.read_bytes())
    content[-1] ^= 1  # the last block: the rarest fragments
    values.write_bytes(content)
    service = LowerService(tiny_home, RegistrySnapshot(Registry.open(tiny_home)), FALLBACK)
    texts = [text.text for text in sample_texts(300, seed=12)]  # the domain's own corpus
    results = service.encode([request(("globex/topic", text)) for text in texts])
    failed = [isinstance(result, UnusableError) for result in results]
    assert 0 < sum(failed) < len(failed)
    assert all(isinstance(result, HiddenRequest) for result, bad in zip(results, failed, strict=True) if not bad)


def test_hits_are_counted_per_level(service: LowerService) -> None:
    service.encode([request(("acme/topic", "the cat"), ("globex/topic", "the cat"))])
    hits = service.domains.hits()
    assert sum(hits.values()) == 8
    assert set(hits) == {("tiny", level) for level in ("farm@1", "street@1", "general@1", "bi", "uni")}
