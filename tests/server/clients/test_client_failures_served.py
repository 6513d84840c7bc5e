"""Refusals, timeouts, cancellations, and servers that are away or die, seen by every kind of client."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

import hplm_client
from hplm_client import AsyncHplmClient, ClientError
from waiting import LIMIT_S, seconds_at_best

pytestmark = pytest.mark.server
KINDS = ("grpc", "http", "grpc-aio", "http-aio")

NO_SERVER_S = 2.0


def failure_of(client, hplm, **options):
    with pytest.raises(ClientError) as caught:
        client.infer(hplm, "text", **options)
    assert caught.value.hplm == hplm
    assert "\n" not in str(caught.value) and "ensemble" not in str(caught.value)
    return caught.value


def nowhere():
    """Addresses at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{probe.getsockname()[1]}"
    return SimpleNamespace(grpc_url=url, http_url=url)


@pytest.mark.parametrize(
    ("code", "over_grpc", "over_http"),
    [
        ("NOT_FOUND", hplm_client.NotFoundError, hplm_client.NotFoundError),
        ("INVALID_ARG", hplm_client.InvalidRequestError, hplm_client.InvalidRequestError),
        ("UNAVAILABLE", hplm_client.UnavailableError, hplm_client.UnavailableError),
        ("INTERNAL", hplm_client.ServerError, hplm_client.ServerError),
        ("UNSUPPORTED", hplm_client.ServerError, hplm_client.ServerError),
        # Triton answers HTTP with status 400 for what has no status of its own there.
        ("CANCELLED", hplm_client.RequestCancelledError, hplm_client.InvalidRequestError),
        ("UNKNOWN", hplm_client.ServerError, hplm_client.InvalidRequestError),
        ("ALREADY_EXISTS", hplm_client.ServerError, hplm_client.InvalidRequestError),
    ],
)
def test_every_code_of_the_server(server, connect, request, code, over_grpc, over_http):
    error = failure_of(connect(server), f"fail/{code}")
    assert type(error) is (over_http if "http" in request.node.name else over_grpc)
    assert str(error) == f"the {code} that was asked for"


def test_an_unknown_hplm(server, connect):
    error = failure_of(connect(server), "nobody/nothing")
    assert type(error) is hplm_client.NotFoundError and str(error) == "hPLM nobody/nothing is unknown"


def test_a_bug_in_the_server_is_one_line(server, connect):
    error = failure_of(connect(server), "crash/raise")
    assert type(error) is hplm_client.ServerError and str(error) == "ValueError: a bug in the server"


@pytest.mark.parametrize("name", ["not_json", "new_task"])
def test_an_answer_outside_the_contract(server, connect, name):
    error = failure_of(connect(server), f"raw/{name}")
    assert type(error) is hplm_client.ServerError


def test_a_refusal_is_not_tried_again(server, connect):
    started_at = time.monotonic()
    failure_of(connect(server, retries=1000), "fail/UNAVAILABLE", timeout_s=2 * LIMIT_S)
    assert time.monotonic() - started_at < LIMIT_S


def test_timeouts(server, connect):
    client = connect(server)
    for options in ({"timeout_s": 0.3}, {"deadline_ms": 1}):
        errors = []

        def ask(options=options, errors=errors):
            errors.append(failure_of(client, "slow/3000", **options))

        assert 0.25 < seconds_at_best(ask, 2.5) < 2.5
        assert {type(error) for error in errors} == {hplm_client.RequestTimeoutError}
    assert client.infer("acme/length", "still works").value == 11


def test_a_timeout_of_the_whole_call(server, connect):
    client = connect(server, concurrency=2, rows_per_request=1)
    requests = [("slow/800", f"text {number}") for number in range(8)]
    for _ in range(3):  # a machine that stalls answers fewer
        started_at = time.monotonic()
        outcomes = client.infer_many(requests, on_error="return", timeout_s=2.2)
        took_s = time.monotonic() - started_at
        assert took_s > 2.1
        kinds = [type(outcome) for outcome in outcomes]
        if took_s < 4.0 and kinds == [hplm_client.Classification] * 4 + [hplm_client.RequestTimeoutError] * 4:
            return
    pytest.fail(f"{kinds} after {took_s:.1f} s")


def test_concurrency_is_bounded_and_used(server, connect):
    requests = [("slow/300", f"text {number}") for number in range(8)]
    client = connect(server, concurrency=4, rows_per_request=1)
    assert 0.6 <= seconds_at_best(lambda: client.infer_many(requests), 2.0) < 2.0


def test_no_server_is_a_clear_error_and_quick(connect):
    place = nowhere()
    client, errors = connect(place), []
    assert seconds_at_best(lambda: errors.append(failure_of(client, "acme/topics")), NO_SERVER_S) < NO_SERVER_S
    error = errors[0]
    assert type(error) is hplm_client.ConnectionFailedError
    assert str(error).lower().startswith(f"cannot connect to {place.grpc_url}: connect")
    assert client.is_ready() is False
    with pytest.raises(hplm_client.RequestTimeoutError, match=r"not ready within 0\.3 s"):
        client.wait_ready(0.3)


def test_an_unknown_host(connect):
    place = SimpleNamespace(grpc_url="no-such-host.invalid:80", http_url="no-such-host.invalid:80")
    error = failure_of(connect(place, retries=0), "acme/topics")
    assert type(error) is hplm_client.ConnectionFailedError and "no-such-host.invalid:80: " in str(error)


def test_no_connection_is_tried_as_often_as_asked_and_not_past_the_timeout(connect):
    errors = []

    def ask():
        errors.append(failure_of(connect(nowhere(), retries=1000), "acme/topics", timeout_s=0.8))

    assert 0.3 < seconds_at_best(ask, 1.6) < 1.6
    assert {type(error) for error in errors} == {hplm_client.ConnectionFailedError}


def test_a_server_that_comes_up_later_is_found_by_retries(server, connect, request):
    """Its port is a relay to the running server; it opens while the client is already asking."""
    place = nowhere()
    target = server.http_url if "http" in request.node.name else server.grpc_url
    is_over = threading.Event()
    opening = threading.Timer(0.4, _relay, (place.grpc_url, target, is_over))
    opening.start()
    started_at = time.monotonic()
    try:
        assert connect(place, retries=100).infer("acme/length", "text", timeout_s=LIMIT_S).value == 4
        assert time.monotonic() - started_at > 0.4
    finally:
        is_over.set()
        opening.join()


def _relay(source, target, is_over):
    """Pass connections to `source` on to `target`, each until either side ends it.

    A client may give a connection up and open another.
    """
    host, port = source.split(":")
    with socket.create_server((host, int(port))) as listener:
        listener.settimeout(0.1)
        while not is_over.is_set():
            with suppress(TimeoutError):
                near = listener.accept()[0]
                near.settimeout(None)
                far = socket.create_connection(target.split(":"))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=ends, daemon=True).start()


def _pump(source, target):
    with suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


def test_something_else_listens(connect):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            listener.settimeout(LIMIT_S)
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>")
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        client = connect(SimpleNamespace(grpc_url=url, http_url=url), retries=0)
        error = failure_of(client, "acme/topics", timeout_s=LIMIT_S)
        thread.join()
    assert type(error) in (hplm_client.ServerError, hplm_client.ConnectionFailedError, hplm_client.ConnectionLostError)


def test_a_server_that_dies_in_mid_flight(doomed_server, every_kind):
    alive = threading.Barrier(len(KINDS))

    def check(connect):
        client = connect(doomed_server, retries=1000)
        assert client.infer("acme/length", "alive").value == 5
        if alive.wait(30) == 0:
            threading.Timer(1.0, os.kill, (doomed_server.pid, signal.SIGKILL)).start()
        started_at = time.monotonic()
        error = failure_of(client, "slow/90000", timeout_s=2 * LIMIT_S)
        assert type(error) is hplm_client.ConnectionLostError and time.monotonic() - started_at < LIMIT_S
        assert "broke while waiting" in str(error)
        doomed_server.wait(LIMIT_S)
        error = failure_of(client, "acme/topics", timeout_s=1)
        assert type(error) is hplm_client.ConnectionFailedError

    every_kind(check)


@pytest.mark.parametrize(
    "connect",
    ["grpc", "http", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("grpc-aio", "http-aio"))],
    indirect=True,
)
def test_a_dead_model_process(doomed_server, connect):
    client = connect(doomed_server)
    for hplm in ("crash/stub", "acme/topics"):
        error = failure_of(client, hplm, timeout_s=LIMIT_S)
        assert type(error) is hplm_client.ServerError and "not healthy" in str(error)


def test_a_closed_client(server, connect):
    client = connect(server)
    client.infer("acme/length", "text")
    client.close()
    assert "closed" in str(failure_of(client, "acme/length"))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_a_cancelled_task_is_cancelled_and_the_client_goes_on(server, protocol):
    url = f"{protocol}://{server.grpc_url if protocol == 'grpc' else server.http_url}"
    async with AsyncHplmClient(url) as client:
        task = asyncio.create_task(client.infer("slow/2000", "text"))
        many = asyncio.create_task(client.infer_many([("slow/2000", "text")] * 3))
        await asyncio.sleep(0.3)
        task.cancel()
        many.cancel()
        for cancelled in (task, many):
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        assert (await client.infer("acme/length", "still works")).value == 11


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_closing_ends_what_is_under_way_with_an_error(server, protocol):
    url = f"{protocol}://{server.grpc_url if protocol == 'grpc' else server.http_url}"
    client = AsyncHplmClient(url)
    task = asyncio.create_task(client.infer("slow/4000", "text"))
    await asyncio.sleep(0.3)
    started_at = time.monotonic()
    await client.close()
    with pytest.raises(ClientError):
        await task
    assert time.monotonic() - started_at < 3, "it waited for the answer"
