"""What the canary takes for an outcome of a gRPC port with certificates: any word, but neither silence nor nobody."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from builder.serving import canary
from certificates import Authority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextlib.contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[str]:
    """A port that answers one greeting, or that is silent without a context."""

    def answer() -> None:
        connection, _ = listener.accept()
        if context is None:
            return held.append(connection)
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
            assert encrypted.recv(1024).startswith(b"PRI * HTTP/2.0")
            encrypted.sendall(SETTINGS)

    held: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        for each in held:
            each.close()


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
