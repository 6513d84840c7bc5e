"""What the canary takes for an outcome, and which missing ones a restart may help."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

from builder.serving import canary
from builder.serving.canary import TooLongError
from builder.serving.vital_signs import Complaint
from certificates import Authority
from waiting import wait_until


@contextlib.contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[str]:
    """A port that answers one greeting, or that is silent without a context."""

    def answer() -> None:
        connection, _ = listener.accept()
        if context is None:
            return held.append(connection)
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
            pass

    held: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        for each in held:
            each.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize("wants_certificates", [False, True])
def test_a_port_that_speaks_is_alive(tmp_path: Path, wants_certificates: bool) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    if wants_certificates:
        context.load_verify_locations(authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    with listening(context) as url:
        canary._greet_grpc(url)


def test_a_silent_port_and_none_are_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "_TIMEOUT_S", 0.2)
    with listening(None) as url, pytest.raises(TimeoutError):
        canary._greet_grpc(url)
    with pytest.raises(ConnectionRefusedError):
        canary._greet_grpc(url)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a company's proxy the watchdog would replace a healthy server."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = grpc.server(ThreadPoolExecutor(1))
    add_GRPCInferenceServiceServicer_to_server(GRPCInferenceServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        fault = canary._ask_grpc(f"127.0.0.1:{port}", "acme/topic", {})
        assert fault is not None and fault.status == "UNIMPLEMENTED", fault
    finally:
        server.stop(None)


def complaints_after_failures(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[str], None],
    num_answered: Callable[[], int],
    has_tls: bool = False,
) -> list[Complaint]:
    """Ask both paths by `ask`, which gets "http" or "grpc", a few times each; return what there is to complain of."""
    attempts: list[str] = []

    def noted(url: str, *_: object) -> None:
        attempts.append(url)
        ask(url)

    monkeypatch.setattr(canary, "_ask_http", noted)
    monkeypatch.setattr(canary, "_ask_grpc", noted)
    monkeypatch.setattr(canary, "_greet_grpc", noted)
    monkeypatch.setattr(canary, "_EVERY_S", 0.01)
    monkeypatch.setattr(canary, "_FATAL_AFTER_S", 0.0)
    watching = canary.Canary("http", "grpc", list, "", has_tls, num_answered)
    wait_until(lambda: len(attempts) >= 8)
    watching.close()
    return watching.complaints()


@pytest.mark.parametrize(
    ("error", "others_end", "is_fatal"),
    [(TooLongError(), True, False), (TooLongError(), False, True), (ConnectionRefusedError("refused"), True, True)],
    ids=["waits behind others", "nothing ends", "nothing listens"],
)
def test_no_outcome_is_fatal_unless_the_canary_waits_in_tritons_queue(
    monkeypatch: pytest.MonkeyPatch, error: Exception, others_end: bool, is_fatal: bool
) -> None:
    def ask(url: str) -> None:
        raise error

    answered = itertools.count()
    found = complaints_after_failures(monkeypatch, ask, lambda: next(answered) if others_end else 7)
    assert [each.text for each in found] == [f"no answer over {path}: {error}" for path in ("HTTP", "gRPC")]
    assert {each.fatal for each in found} == {is_fatal}


def test_a_path_that_hangs_alone_waits_in_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests over the other one, its canaries among them, end all the time."""

    def ask(url: str) -> None:
        if url == "grpc":
            raise TooLongError

    answered = itertools.count()
    found = complaints_after_failures(monkeypatch, ask, lambda: next(answered))
    assert [each.fatal for each in found] == [True]


def test_one_that_just_gets_an_answer_waits_in_the_queue_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the queue takes about as long as a canary waits, one path has an answer and the other has none."""
    monkeypatch.setattr(canary, "_LONG_S", 0.02)

    def ask(url: str) -> None:
        if url == "http":
            raise TooLongError
        time.sleep(0.05)

    answered = itertools.count()
    found = complaints_after_failures(monkeypatch, ask, lambda: next(answered))
    assert [each.fatal for each in found] == [False]


def test_a_greeting_waits_in_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a port with certificates greets at once says nothing of the queue that the other path waits in."""

    def ask(url: str) -> None:
        if url == "http":
            raise TooLongError

    answered = itertools.count()
    found = complaints_after_failures(monkeypatch, ask, lambda: next(answered), has_tls=True)
    assert [each.fatal for each in found] == [False]


def test_a_greeting_that_never_comes_is_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(url: str) -> None:
        if url == "grpc":
            raise TimeoutError("timed out")

    answered = itertools.count()
    found = complaints_after_failures(monkeypatch, ask, lambda: next(answered), has_tls=True)
    assert [each.fatal for each in found] == [True]


def test_http_that_is_silent_is_a_canary_that_waits_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "_TIMEOUT_S", 0.2)
    with listening(None) as url, pytest.raises(TooLongError, match=r"none within 0\.2 s"):
        canary._ask_http(url, "acme/topic", {})
