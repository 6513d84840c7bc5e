"""Texts are cut and requests rejected by their bytes, before anything reads them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower.encode_queue import EncodeQueue
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing, QueueSettings, TextLimits
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.root import tokenizer
from backends.root.tokenizer import Text
from backends.scheduling.rejection import RejectedError
from backends.wire import Ticket, decode_tickets


@contextmanager
def serving(home: Home, limits: TextLimits = TextLimits()) -> Iterator[LowerService]:
    snapshot = RegistrySnapshot(Registry.open(home))
    service = LowerService(home, snapshot, FillingSettings(Missing.FALLBACK), limits=limits)
    service.warm_up()
    yield service
    service.close()
    snapshot.close()


def asked(text: bytes, hplm: str = "acme/topic") -> TextRequest:
    return TextRequest([hplm.encode()], [text], "")


def ticket(service: LowerService, text: bytes) -> Ticket:
    (result,) = service.encode([asked(text)])
    assert isinstance(result, HiddenRequest), result
    return decode_tickets(result.tickets)[0].ticket


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_ends_no_character_in_its_middle(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choice("aé中😀") for _ in range(60))
    for limit in range(1, 200):
        cut = TextLimits(limit).cut(text.encode())
        if limit >= 4:
            assert text.startswith(cut.decode())
        assert len(cut) <= limit and (limit - len(cut) < 4 or cut == text.encode())


def test_text_that_is_no_utf8_is_cut_all_the_same() -> None:
    assert len(TextLimits(100).cut(b"\x80" * 300)) >= 97


def test_a_text_beyond_the_limit_is_cut_and_says_so(tiny_home: Home) -> None:
    with serving(tiny_home, TextLimits(12)) as service:
        cut, whole = ticket(service, b"cat dog cat dog"), ticket(service, b"cat dog cat ")
    assert cut.truncated and not whole.truncated
    assert cut.num_tokens == whole.num_tokens


def test_a_request_beyond_the_limit_is_rejected_and_one_within_it_is_not(tiny_home: Home) -> None:
    most = TextLimits.max_request_bytes
    with serving(tiny_home) as service:
        for texts in ([b"x" * most], [b"cat " * 65_536] * 65):
            (result,) = service.encode([TextRequest([b"acme/topic"] * len(texts), texts, "")])
            assert isinstance(result, InvalidArgumentError)
            assert f"may have {most:,}" in str(result) and "\n" not in str(result)
        assert ticket(service, b"x" * (most - len("acme/topic"))).truncated


@pytest.mark.parametrize(
    "text",
    [
        b"x" * 1_000_000,
        b" " * 1_000_000 + b"cat",
        b" " * 5_000 + b"cat " + b"x" * 1_000_000,
        b"cat " + b"x" * 1_000_000,
        "é".encode() * 500_000,
        b"." * 1_000_000,
    ],
    ids=["letters", "blanks", "blanks before", "a word before", "accents", "points"],
)
def test_of_a_megabyte_two_windows_at_most_are_tokenised(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    sizes: list[int] = []

    def noted(text: Text, window: int) -> Text:
        head = head_of(text, window)
        sizes.append(len(head))
        return head

    head_of = tokenizer._head
    with serving(tiny_home) as service:
        monkeypatch.setattr(tokenizer, "_head", noted)
        (result,) = service.encode([asked(text)])
    assert len(sizes) <= 2 and sum(sizes) <= 2 * tokenizer.MOST_CHARACTERS
    if isinstance(result, HiddenRequest):
        assert decode_tickets(result.tickets)[0].ticket.truncated
    else:
        assert "empty" in str(result)


def test_long_texts_are_charged_by_their_characters(tiny_home: Home) -> None:
    with serving(tiny_home) as service:
        charges = [ticket(service, b"x" * size).computing_us for size in (4, 4096, 6144, 8192, 65_536, 1 << 20)]
    assert charges == [0, 0, 410, 819, 819, 819]


def test_no_tenant_fills_the_bytes_that_wait(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny_home) as service:
        monkeypatch.setattr(EncodeQueue, "_encode_all", lambda _: None)
        queue = EncodeQueue(service, QueueSettings(max_bytes=100_000))
        text = "é".encode() * 10_000
        answers = [queue.add(asked(text), lambda _: None) for _ in range(4)]
        assert answers[:2] == [None, None]
        assert all(isinstance(one, RejectedError) and "tenant_quota" in str(one) for one in answers[2:])
        assert queue.add(asked(text, "globex/topic"), lambda _: None) is None
        queue.close()
