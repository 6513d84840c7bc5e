"""What transports make of servers that are none, and of limits that no socket can count."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from small_servers import small_server

import hplm_client
from hplm_client.address import Protocol


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


async def waited_for(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)
