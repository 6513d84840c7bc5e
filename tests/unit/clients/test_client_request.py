from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from hplm_client import ClosedError, HplmClient, InvalidRequestError, Request
from hplm_client.address import Address, parse_address
from hplm_client.tasks import requests_for
from seeds import SEED


def random_text(generator: random.Random) -> str:
    alphabets = ["abc XYZ", "äöüß", "漢字かな", "🙂🚀", "\n\r\x00", "עברית"]
    return "x" + "".join(generator.choice(generator.choice(alphabets)) for _ in range(generator.randrange(1, 60)))


def test_single_and_pair_travel_as_utf8() -> None:
    generator = random.Random(SEED)
    for _ in range(200):
        first, second = random_text(generator), random_text(generator)
        assert Request("acme/returns", first).wire_text.decode() == first
        assert Request("acme/returns", first, second).wire_text.decode().split("\t") == [first, second]


def test_tab_in_a_single_text_becomes_a_space_and_keeps_offsets() -> None:
    text = "to\tRome\tand back"
    sent = Request("acme/names", text).wire_text.decode()
    assert "\t" not in sent and len(sent) == len(text) and sent.index("back") == text.index("back")


@pytest.mark.parametrize("halves", [("a\tb", "c"), ("a", "b\tc")])
def test_tab_in_a_half_of_a_pair_is_refused(halves: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="TAB"):
        Request("acme/returns", *halves)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": " \t\n"}, "text is empty"),
        ({"text": "a", "text_pair": ""}, "text_pair is empty"),
        ({"text": b"bytes"}, "text must be a str, not bytes"),
        ({"text": None}, "text must be a str, not NoneType"),
        ({"text": "a", "text_pair": 7}, "text_pair must be a str, not int"),
        ({"text": "broken \ud800"}, "surrogate at character 7"),
        ({"text": "a", "deadline_ms": 0}, "positive whole number, not 0"),
        ({"text": "a", "deadline_ms": -5}, "positive whole number, not -5"),
        ({"text": "a", "deadline_ms": 1.5}, "positive whole number, not 1.5"),
        ({"text": "a", "deadline_ms": True}, "positive whole number, not True"),
        ({"text": "a", "deadline_ms": 10**30}, "at most 86400000, a day"),
        ({"text": "a", "level": ""}, "level must be"),
    ],
)
def test_bad_requests_are_refused_before_they_are_sent(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        Request("acme/returns", **arguments)  # type: ignore[arg-type]
    assert caught.value.hplm == "acme/returns" and "\n" not in str(caught.value)


@pytest.mark.parametrize("hplm", ["acme", "acme/", "/returns", "a/b/c", "acme/re turns", "acme/ü", "acme/x\n", 7, None])
def test_ids_without_a_tenant_and_a_name_are_refused(hplm: object) -> None:
    with pytest.raises(InvalidRequestError, match="tenant/name"):
        Request(hplm, "text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("localhost:9001", None, Address("grpc", "localhost", 9001)),
        ("localhost:9000", "http", Address("http", "localhost", 9000)),
        ("grpc://10.0.0.1:81", None, Address("grpc", "10.0.0.1", 81)),
        ("http://triton.example:80/", "http", Address("http", "triton.example", 80)),
        ("triton", "grpc", Address("grpc", "triton", 8001)),
        ("http://triton", None, Address("http", "triton", 8000)),
        ("grpc://[::1]:8001", None, Address("grpc", "::1", 8001)),
        ("http://[fe80::1%eth0]:80", None, Address("http", "fe80::1%eth0", 80)),
        ("http://bücher.example.:80", None, Address("http", "bücher.example.", 80)),
    ],
)
def test_addresses(url: str, protocol: str | None, expected: Address) -> None:
    address = parse_address(url, protocol)  # type: ignore[arg-type]
    assert address == expected
    assert parse_address(str(address), address.protocol) == expected


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("ftp://host:1", None),
        ("grpc://host:1", "http"),
        ("host:port", None),
        ("host:99999", None),
        ("", None),
        ("http://host:1/v2/models", None),
        ("http://user@host:1", None),
        ("host:1", "soap"),
    ],
)
def test_bad_addresses_are_refused(url: str, protocol: str | None) -> None:
    with pytest.raises(InvalidRequestError):
        parse_address(url, protocol)  # type: ignore[arg-type]


def test_infinite_timeout_is_not_a_timeout_of_zero() -> None:
    from hplm_client.limits import check_timeout

    check_timeout(math.inf)
    check_timeout(np.float32(0.5))  # type: ignore[arg-type]
    for timeout_s in (0.0, -1.0, math.nan, "5", True):
        with pytest.raises(InvalidRequestError, match="timeout_s must be a positive number of seconds, not"):
            check_timeout(timeout_s)  # type: ignore[arg-type]


def test_whole_numbers_of_numpy_are_deadlines() -> None:
    assert Request("acme/returns", "a", deadline_ms=np.int64(500)).deadline_ms == 500  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="positive whole number"):
        Request("acme/returns", "a", deadline_ms=np.float64(500))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline_ms": -1}, "deadline_ms must be a positive whole number, not -1"),
        ({"deadline_ms": "5"}, "deadline_ms must be a positive whole number, not '5'"),
        ({"timeout_s": "5"}, "timeout_s must be a positive number of seconds, not '5'"),
        ({"token": 5}, "a token is a str, or a str for each tenant, not int"),
        ({"token": {"acme": 5}}, "a token is a str, or a str for each tenant, not int"),
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        HplmClient("localhost:1", **options)
    with HplmClient("localhost:1") as client, pytest.raises(InvalidRequestError, match=message):
        client.with_options(**options)


def test_clients_with_other_options_share_the_retry_budget() -> None:
    with HplmClient("localhost:1") as client:
        budgets = [client.with_options(deadline_ms=number)._speaker.budget for number in (100, 200)]
        assert sum(budget.take() for budget in budgets * 10) == 10
        assert not client._speaker.budget.take()


def test_options_that_there_are_not_are_refused() -> None:
    with (
        HplmClient("localhost:1") as client,
        pytest.raises(TypeError, match=r"with_options\(\) got an unexpected keyword argument 'deadlin_ms'"),
    ):
        client.with_options(deadlin_ms=1)  # type: ignore[call-arg]


def test_a_closed_client_says_so() -> None:
    client = HplmClient("localhost:1")
    client.close()
    with pytest.raises(ClosedError, match="this client is closed"):
        client.infer("acme/returns", "a")


@pytest.mark.parametrize("text", [None, 5, b"abc", ("a", "b", "c")])
def test_a_text_of_another_type_is_named(text: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"a text must be a str, .*; not {type(text).__name__}"):
        requests_for("acme/topic", ["fine", text])  # type: ignore[list-item]
