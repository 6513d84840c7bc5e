"""A client with several addresses: the first that answers is asked, and the next one when it does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from bench.kit.proxy import Proxy
from hplm_client import (
    AsyncHplmClient,
    ConnectionFailedError,
    ConnectionLostError,
    HplmClient,
    InvalidRequestError,
    NotReadyError,
    UnavailableError,
    Value,
    base,
)
from hplm_client import choice as choices
from hplm_client.address import Protocol, parse_address, parse_addresses
from hplm_client.choice import Choice
from hplm_client.errors import RequestTimeoutError
from small_servers import SmallServer, black_hole, free_port, small_server
from waiting import LIMIT_S

Ask = Callable[..., Any]


class Way:
    """A kind of client over a protocol; every call of it can be awaited."""

    def __init__(self, protocol: Protocol, is_async: bool) -> None:
        self.protocol = protocol
        self._is_async = is_async

    @asynccontextmanager
    async def client(self, urls: str | Sequence[str], **options: Any) -> AsyncIterator[Callable[..., Any]]:
        """Yield a function that awaits a method of the client by its name."""
        if self._is_async:
            async with AsyncHplmClient(urls, **options) as asynchronous:
                yield lambda method, *given, **named: getattr(asynchronous, method)(*given, **named)
        else:
            with HplmClient(urls, **options) as blocking:
                yield lambda method, *given, **named: asyncio.to_thread(getattr(blocking, method), *given, **named)


@pytest.fixture(params=["grpc", "grpc asyncio", "http", "http asyncio"])
def way(request: pytest.FixtureRequest) -> Way:
    protocol, _, kind = request.param.partition(" ")
    return Way(protocol, bool(kind))


@pytest.fixture
def servers(way: Way) -> Any:
    with ExitStack() as stack:
        yield [stack.enter_context(small_server(way.protocol)) for _ in range(2)]


@pytest.fixture
def long_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad servers are left alone for longer than a test takes, instead of a second."""
    for name in ("_FIRST_BAD_S", "_LONGEST_BAD_S"):
        monkeypatch.setattr(choices, name, 10 * LIMIT_S)


def urls(servers: Sequence[SmallServer]) -> str:
    return f"{servers[0].protocol}://" + ",".join(server.place for server in servers)


async def port_that_answers(ask: Ask, hplm: str = "acme/x", **options: Any) -> int:
    answer = await ask("infer", hplm, "text", **options)
    assert isinstance(answer, Value)
    return int(answer.value)


async def test_every_transport_sends_the_hplm_for_the_gateway(way: Way, servers: list[SmallServer]) -> None:
    async with way.client(servers[0].url) as ask:
        answer = await ask("infer", "acme/x", "text")
        await ask("infer_many", [("globex/y", "one"), ("globex/y", "two"), ("acme/x", "three")])
    assert sorted(servers[0].hplms) == ["acme/x", "acme/x", "globex/y"]
    assert servers[0].headers[0]["x-request-id"] == answer.request_id


async def test_the_first_that_answers_is_asked(
    way: Way, servers: list[SmallServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_CONNECT_S", 2 * LIMIT_S)
    places = [f"{way.protocol}://127.0.0.1:{free_port()}", *(server.url for server in servers)]
    async with way.client(places, timeout_s=4 * LIMIT_S) as ask:
        started_at = time.monotonic()
        assert {await port_that_answers(ask) for _ in range(3)} == {servers[0].port}
        assert time.monotonic() - started_at < LIMIT_S, "a refused connection was waited for"
    assert servers[1].asked == 0


@pytest.mark.usefixtures("long_bad")
async def test_a_server_that_is_not_ready_hands_on_to_the_next(way: Way, servers: list[SmallServer]) -> None:
    servers[0].fault = "not ready"
    async with way.client(urls(servers), retries=0) as ask:
        assert [await port_that_answers(ask) for _ in range(3)] == [servers[1].port] * 3
        assert servers[0].asked == 1, "a bad one is left alone for a moment"
        assert await ask("is_ready")


async def test_a_tenant_stays_where_it_is_answered_and_moves_when_that_server_ends(
    way: Way, servers: list[SmallServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "_FIRST_BAD_S", 0.01)
    servers[0].fault = "not ready"
    async with way.client(urls(servers)) as ask:
        assert await port_that_answers(ask, "acme/x") == servers[1].port
        servers[0].fault = None
        await asyncio.sleep(0.05)
        assert await port_that_answers(ask, "acme/other") == servers[1].port
        assert await port_that_answers(ask, "globex/x") == servers[0].port
        await asyncio.to_thread(servers[1].stop)
        assert await port_that_answers(ask, "acme/x") == servers[0].port


@pytest.mark.usefixtures("long_bad")
async def test_what_may_have_been_executed_is_not_sent_again(way: Way, servers: list[SmallServer]) -> None:
    with Proxy("127.0.0.1", servers[0].port) as proxy:
        async with way.client([f"{way.protocol}://127.0.0.1:{proxy.port}", servers[1].url], retries=5) as ask:
            assert await port_that_answers(ask) == servers[0].port
            proxy.delay_s = 4 * LIMIT_S
            waiting = asyncio.ensure_future(ask("infer", "acme/x", "text", timeout_s=2 * LIMIT_S))
            while servers[0].asked < 2:
                await asyncio.sleep(0.01)
            proxy.mend()  # breaks the connection
            with pytest.raises(ConnectionLostError):
                await waiting
            assert (servers[0].asked, servers[1].asked) == (2, 0)
            assert await port_that_answers(ask) == servers[1].port, "the next request goes elsewhere"


async def test_a_rejection_is_not_taken_to_another_server(way: Way, servers: list[SmallServer]) -> None:
    """Overload of one must not become load of all."""
    servers[0].fault = "no room"
    async with way.client(urls(servers), retries=2) as ask:
        with pytest.raises(UnavailableError) as caught:
            await ask("infer", "acme/x", "text")
    assert caught.value.reason == "queue_full"
    assert (servers[0].asked, servers[1].asked) == (3, 0)


async def test_where_none_answers_the_error_names_all(way: Way, servers: list[SmallServer]) -> None:
    for server in servers:
        await asyncio.to_thread(server.stop)
    async with way.client(urls(servers), retries=1) as ask:
        with pytest.raises(ConnectionFailedError, match="none of 2 servers took the request: cannot connect") as caught:
            await ask("infer", "acme/x", "text")
        assert all(server.place in str(caught.value) for server in servers) and "\n" not in str(caught.value)
        assert not await ask("is_ready")


async def test_a_server_that_comes_back_is_found(way: Way, servers: list[SmallServer]) -> None:
    for server in servers:
        await asyncio.to_thread(server.stop)
    async with way.client(urls(servers), retries=1000, timeout_s=2 * LIMIT_S) as ask:
        waiting = asyncio.ensure_future(port_that_answers(ask))
        await asyncio.sleep(0.3)
        with small_server(way.protocol, port=servers[1].port):
            assert await waiting == servers[1].port
            await ask("wait_ready", timeout_s=LIMIT_S)


async def test_a_host_that_swallows_everything_costs_two_seconds_once(way: Way, servers: list[SmallServer]) -> None:
    for _ in range(3):  # a machine that stalls makes one attempt slow, a client that waits longer each
        with black_hole() as hole:
            async with way.client([f"{way.protocol}://{hole}", servers[0].url], timeout_s=2 * LIMIT_S) as ask:
                started_at = time.monotonic()
                assert await port_that_answers(ask) == servers[0].port
                first_s = time.monotonic() - started_at
                assert [await port_that_answers(ask) for _ in range(3)] == [servers[0].port] * 3
                others_s = time.monotonic() - started_at - first_s
        assert first_s > 1.5
        if first_s < 4.5 and others_s < 1.0:
            return
    pytest.fail(f"it cost {first_s:.1f} s and then {others_s:.1f} s")


async def test_many_requests_go_on_when_a_server_ends(way: Way, servers: list[SmallServer]) -> None:
    async with way.client(urls(servers), rows_per_request=1, concurrency=4) as ask:
        assert await port_that_answers(ask) == servers[0].port
        await asyncio.to_thread(servers[0].stop)
        await asyncio.sleep(0.5)  # what is sent before the client has seen the end may be executed, and is not repeated
        answers = await ask("infer_many", [(f"tenant{number}/x", "text") for number in range(40)])
    assert [answer.value for answer in answers] == [servers[1].port] * 40, "more than the retry budget allows"


def test_other_settings_know_the_same_servers() -> None:
    with small_server("grpc", "not ready") as first, small_server("grpc") as second:
        with HplmClient(urls([first, second])) as client:
            client.infer("acme/x", "text")
            client.with_options(timeout_s=5).infer("acme/x", "text")
        assert (first.asked, second.asked) == (1, 2)


def test_a_list_of_addresses() -> None:
    texts = [str(address) for address in parse_addresses("grpc://a:1, b,[::1]:3")]
    assert texts == ["a:1", "b:8001", "[::1]:3"]
    assert [address.protocol for address in parse_addresses(("http://a", "b:2"))] == ["http", "http"]
    assert [address.port for address in parse_addresses(["a", "grpc://b"], "grpc")] == [8001, 8001]
    assert len(parse_addresses("a")) == 1


@pytest.mark.parametrize(
    ("given", "protocol", "message"),
    [
        ([], None, "its list is empty"),
        ("a:1,,b:2", None, "has an empty one"),
        ("a:1,", None, "has an empty one"),
        (["a:1", " "], None, "has an empty one"),
        ("grpc://a:1,http://b:2", None, "speak one protocol"),
        ("a:1,http://b:2", None, "speak one protocol"),
        ("a:1,http://b:2", "grpc", "contradict each other"),
        ("a:1,b:2,a:1", None, "a:1 stands twice"),
        ("a,grpc://a:8001", None, "a:8001 stands twice"),
        ("a:1,b:x", None, "no valid port"),
        ("a:1,b..c:2", None, "'b..c:2' has no valid host name"),
        (f"{'a' * 64}:1", "http", "no valid host name"),
        ("https://a:1", None, "unknown protocol 'https'; use 'grpc' or 'http', which ssl= or HPLM_CA encrypts"),
        ("a:1,b/c", None, "not of the form"),
        (["a:1", 2], None, "a str or a sequence of them"),
        ({"a:1"}, None, "a str or a sequence of them"),
        (["a:1,b:2"], None, "several addresses where one is needed"),
    ],
)
def test_lists_that_cannot_be(given: Any, protocol: Protocol | None, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_addresses(given, protocol)
    with pytest.raises(InvalidRequestError, match=message):
        HplmClient(given, protocol)


def test_one_address_where_one_is_needed() -> None:
    with pytest.raises(InvalidRequestError, match="several addresses where one is needed"):
        parse_address("grpc://a:1,b:2")


def test_the_environment_may_name_several(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_server("grpc", "not ready") as first, small_server("grpc") as second:
        monkeypatch.setenv("HPLM_URL", urls([first, second]))
        with HplmClient() as client:
            answer = client.infer("acme/x", "text")
    assert isinstance(answer, Value) and answer.value == second.port


def test_bad_servers_come_last_and_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    choice = Choice(3)
    assert choice.order("acme") == choice.order() == [0, 1, 2]
    for error in (ConnectionFailedError("x"), ConnectionLostError("x"), NotReadyError("x"), RequestTimeoutError("x")):
        choice.note_error(0, error)
    assert choice.order() == [1, 2, 0]
    choice.note_error(1, UnavailableError("full", reason="queue_full"))
    assert choice.order() == [1, 2, 0], "a rejection says nothing against a server"
    choice.note_error(1, ConnectionFailedError("x"))
    assert choice.order() == [2, 1, 0]
    choice.note_answer("acme", 1)
    assert (choice.order("acme"), choice.order("globex")) == ([1, 2, 0], [1, 2, 0])
    choice.note_answer("globex", 2)
    assert choice.order("globex") == [2, 1, 0]
    now_s += 9.0  # four failures: 1, 2, 4 and 8 seconds
    assert (choice.order("acme"), choice.order("globex"), choice.order()) == ([1, 0, 2], [2, 0, 1], [0, 1, 2])


def test_a_server_may_be_away_for_any_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    choice = Choice(2)
    for _ in range(2000):
        choice.note_error(0, ConnectionFailedError("x"))
    assert choice.order() == [1, 0]
    now_s += 10.0
    assert choice.order() == [0, 1]


def test_so_many_tenants_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "_MOST_TENANTS", 3)
    choice = Choice(2)
    for tenant in ("a", "b", "c", "a", "d"):
        choice.note_answer(tenant, 1)
    assert [choice.order(tenant)[0] for tenant in ("a", "b", "c", "d")] == [1, 0, 1, 1]
