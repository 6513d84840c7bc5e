"""The health port: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from backends.errors import ConflictError, InvalidArgumentError
from builder.serving.errors import PortInUseError
from builder.serving.health import HealthPort, Verdict
from builder.serving.supervisor import Supervision
from waiting import LIMIT_S, wait_until

YES = Verdict(True, [])


class FakeWatched:
    def __init__(self) -> None:
        self.ready = Verdict(False, ["the server is starting"])
        self.finished = threading.Event()

    def is_alive(self) -> Verdict:
        return YES

    def is_ready(self) -> Verdict:
        return self.ready

    def has_started(self) -> Verdict:
        return Verdict(False, [])

    def drain(self) -> Verdict:
        self.ready = Verdict(False, ["the server is draining"])
        return Verdict(self.finished.wait(LIMIT_S), [])


@pytest.fixture
def watched() -> FakeWatched:
    return FakeWatched()


def health_port(address: str, number: int | None, watched: FakeWatched) -> HealthPort:
    probes = {"/livez": watched.is_alive, "/readyz": watched.is_ready, "/startupz": watched.has_started}
    return HealthPort(address, number, probes, {"/drain": watched.drain})


@pytest.fixture
def port(watched: FakeWatched) -> Iterator[HealthPort]:
    port = health_port("127.0.0.1", None, watched)
    yield port
    watched.finished.set()
    port.close()


def ask(port: HealthPort, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(port.url.removeprefix("http://"), timeout=LIMIT_S)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_probes_say_yes_or_why_not(port: HealthPort, watched: FakeWatched) -> None:
    assert ask(port, "GET", "/livez") == (200, {"ok": True})
    assert ask(port, "GET", "/readyz") == (503, {"ok": False, "reasons": ["the server is starting"]})
    assert ask(port, "GET", "/startupz") == (503, {"ok": False})
    watched.ready = YES
    assert ask(port, "GET", "/readyz") == (200, {"ok": True})
    status, answer = ask(port, "GET", "/nothing")
    assert (status, answer) == (404, {"error": "there are /livez, /readyz, /startupz and, to be POSTed, /drain"})
    assert ask(port, "POST", "/readyz")[0] == 404
    assert ask(port, "PUT", "/readyz") == (501, {"error": "Unsupported method ('PUT')"})


def test_an_order_to_drain_returns_when_that_is_done(port: HealthPort, watched: FakeWatched) -> None:
    watched.ready = YES
    with ThreadPoolExecutor(1) as pool:
        order = pool.submit(ask, port, "POST", "/drain")
        while ask(port, "GET", "/readyz")[0] != 503:
            assert not order.done()
        watched.finished.set()
        assert order.result(LIMIT_S) == (200, {"ok": True})


def test_connections_that_say_nothing_do_not_keep_probes_out(port: HealthPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.serving.health._Handler.timeout", 10 * LIMIT_S)  # none ends by itself
    others = set(threading.enumerate())
    host, _, number = port.url.removeprefix("http://").rpartition(":")
    silent = [socket.create_connection((host, int(number))) for _ in range(200)]
    try:
        assert ask(port, "GET", "/livez") == (200, {"ok": True})
        wait_until(lambda: len(set(threading.enumerate()) - others) < 100)
        assert ask(port, "GET", "/livez") == (200, {"ok": True})
    finally:
        for connection in silent:
            connection.close()


def test_an_order_that_cannot_be_carried_out_says_why() -> None:
    def refuse() -> Verdict:
        raise ConflictError("server-1 is the last one")

    port = HealthPort("127.0.0.1", None, {}, {"/drain/server-1": refuse})
    try:
        assert ask(port, "POST", "/drain/server-1") == (409, {"error": "server-1 is the last one"})
    finally:
        port.close()


def test_no_web_page_may_drain(port: HealthPort, watched: FakeWatched) -> None:
    watched.ready = YES
    status, answer = ask(port, "POST", "/drain", {"Origin": "http://evil.example"})
    assert status == 403 and "no web page" in answer["error"]
    assert ask(port, "GET", "/drain")[0] == 405
    assert ask(port, "GET", "/readyz")[0] == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_port_of_ipv6_takes_orders_over_ipv4_too(watched: FakeWatched) -> None:
    port = health_port("::", None, watched)
    watched.finished.set()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(port.url.rpartition(":")[2]), timeout=LIMIT_S)
        connection.request("POST", "/drain")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        port.close()


def test_settings_that_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match="health port 65536 is not between 1 and 65535"):
        Supervision(health_port=65536)
    with pytest.raises(InvalidArgumentError, match="max_restarts is -1; it can be 0 or more"):
        Supervision(max_restarts=-1)


def test_a_port_in_use_and_an_address_of_no_machine(port: HealthPort, watched: FakeWatched) -> None:
    number = int(port.url.rpartition(":")[2])
    with pytest.raises(PortInUseError, match=f"port {number} on 127.0.0.1 is in use by .*; give another --health-port"):
        health_port("127.0.0.1", number, watched)
    with pytest.raises(PortInUseError, match="give another --first-port"):
        HealthPort("127.0.0.1", number, {}, {}, "--first-port")
    with pytest.raises(InvalidArgumentError, match=r"cannot listen on port \d+ of 203\.0\.113\.1"):
        health_port("203.0.113.1", None, watched)
