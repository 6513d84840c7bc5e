"""What transports make of servers that are none, and of limits that no socket can count."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import hplm_client
from hplm_client.address import Protocol, parse_address
from hplm_client.transports.grpc import channel_options
from hplm_client.transports.http import HttpTransport
from small_servers import SmallServer, small_server
from tcp_relay import TcpRelay
from waiting import LIMIT_S, wait_until


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """The address of something that has a page for everybody."""

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


NO_ANSWERS = [b"<html>log in</html>", b"", b"[]", b"\xff\xfe", b"{}", b'{"outputs": 3}', b"null"]


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_a_page_instead_of_an_answer_is_an_error_of_ours(body: bytes) -> None:
    with answering(body) as url, hplm_client.HplmClient(url) as client:
        outcomes = client.infer_many([("a/b", "one"), ("a/c", "two")], on_error="return")
    assert [type(outcome) for outcome in outcomes] == [hplm_client.ServerError] * 2


@pytest.mark.parametrize("body", NO_ANSWERS)
async def test_a_page_instead_of_an_answer_is_an_error_of_ours_under_asyncio(body: bytes) -> None:
    with answering(body) as url:
        async with hplm_client.AsyncHplmClient(url) as client:
            outcomes = await client.infer_many([("a/b", "one"), ("a/c", "two")], on_error="return")
    assert [type(outcome) for outcome in outcomes] == [hplm_client.ServerError] * 2


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("timeout_s", [1e10, math.inf])
def test_whoever_waits_for_ever_is_told_what_is_wrong(protocol: Protocol, timeout_s: float) -> None:
    """Ask where no server listens: an endless time must not look like one that has run out."""
    client = hplm_client.HplmClient("127.0.0.1:1", protocol, timeout_s=timeout_s, retries=0)
    with client, pytest.raises(hplm_client.ConnectionFailedError):
        client.infer("a/b", "text")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_whoever_waits_for_ever_is_told_what_is_wrong_under_asyncio(protocol: Protocol) -> None:
    async def ask() -> None:
        async with hplm_client.AsyncHplmClient("127.0.0.1:1", protocol, timeout_s=math.inf, retries=0) as client:
            await client.infer("a/b", "text")

    with pytest.raises(hplm_client.ConnectionFailedError):
        asyncio.run(ask())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_of_another_event_loop_is_an_error_of_ours(protocol: Protocol) -> None:
    client = hplm_client.AsyncHplmClient("127.0.0.1:1", protocol, retries=0)
    with pytest.raises(hplm_client.ConnectionFailedError):
        asyncio.run(client.infer("a/b", "text"))
    for ask in (client.with_options(retries=1).infer("a/b", "text"), client.is_ready()):
        with pytest.raises(hplm_client.ClosedError, match="event loop in which it was first used"):
            asyncio.run(ask)  # type: ignore[arg-type]


def test_an_exchange_under_way_leaves_no_connection_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is closed when the server has the request; the connection is closed when its answer is here."""
    with small_server("http", "slow") as server, ThreadPoolExecutor(1) as pool:
        client = hplm_client.HplmClient(server.url)
        opened: list[HTTPConnection] = []
        connect = HTTPConnection.connect
        monkeypatch.setattr(HTTPConnection, "connect", lambda self: (opened.append(self), connect(self))[1])
        answer = pool.submit(client.infer, "a/b", "text")
        wait_until(lambda: server.asked == 1)
        client.close()
        server.go_on.set()
        assert answer.result(LIMIT_S).version == 1
        assert [connection.sock for connection in opened] == [None]


def test_threads_share_no_idle_connection() -> None:
    """Two threads look for an idle connection at once, and there is one."""

    class Slow(list[HTTPConnection]):
        def __bool__(self) -> bool:
            found = len(self) > 0
            time.sleep(0.1)
            return found

    with small_server("http") as server, ThreadPoolExecutor(2) as pool:
        transport = HttpTransport(parse_address(server.url))
        assert transport.is_ready(LIMIT_S)
        transport._idle = Slow(transport._idle)
        assert list(pool.map(transport.is_ready, [LIMIT_S] * 2)) == [True, True]
        transport.close()


async def test_a_task_that_is_cancelled_cancels_nothing_on_the_server() -> None:
    with small_server("grpc", "slow") as server:
        async with hplm_client.AsyncHplmClient(server.url) as client:
            task = asyncio.create_task(client.infer("a/b", "text"))
            await waited_for(lambda: server.asked == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)  # a cancelled request would be told within a millisecond
            server.go_on.set()
            assert (await client.infer("a/b", "another")).version == 1
            await waited_for(lambda: len(server.listens) == 2)
        assert server.listens == [True, True]


async def test_a_proxy_of_the_environment_is_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with small_server("grpc") as server:
        with hplm_client.HplmClient(server.url, retries=0) as client:
            assert client.infer("a/b", "text").version == 1
        async with hplm_client.AsyncHplmClient(server.url, retries=0) as client:
            assert (await client.infer("a/b", "text")).version == 1


@pytest.mark.parametrize(
    ("host", "is_asked_directly"),
    [("127.8.9.10", True), ("[::1]", True), ("localhost", True), ("10.0.0.7", False), ("models.example", False)],
)
def test_a_server_elsewhere_may_be_reached_through_a_proxy(host: str, is_asked_directly: bool) -> None:
    options = dict(channel_options(parse_address(f"grpc://{host}:8001"), None))
    assert ("grpc.enable_http_proxy" in options) == is_asked_directly


async def waited_for(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_default_retries_reach_a_port_that_opens_half_a_second_later(protocol: Protocol) -> None:
    with small_server(protocol) as server, closed_for(0.5, server) as url, hplm_client.HplmClient(url) as client:
        assert client.infer("a/b", "text").version == 1


@contextmanager
def closed_for(duration_s: float, server: SmallServer) -> Iterator[str]:
    """The address of a port that refuses connections for so long, and then passes them on to a server."""
    relays: list[TcpRelay] = []
    held = socket.socket()
    held.bind(("127.0.0.1", 0))  # nobody else's, and without listening it refuses connections

    def open_port() -> None:
        held.listen()
        relays.append(TcpRelay(server.port, held))

    opening = threading.Timer(duration_s, open_port)
    opening.start()
    try:
        yield f"{server.protocol}://127.0.0.1:{held.getsockname()[1]}"
    finally:
        opening.join()
        relays[0].close()
