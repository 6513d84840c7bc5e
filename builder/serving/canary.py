"""The canary: one short text each second, through the ensemble, in turns over HTTP and gRPC.

It asks one of the hPLMs that are served, with a deadline, so that it never waits in a long queue. A rejection and an
error of the models are answers too: what they prove is that requests get an outcome. Where no hPLM exists it asks one
that cannot exist; then only `hplm_lower` answers, and the heartbeats alone speak for `hplm_upper`. It shows a token of
its own. A gRPC port with certificates is greeted only, since the canary has none.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from builder.serving.vital_signs import Complaint

_EVERY_S = 1.0
_TIMEOUT_S = 4.0
_FATAL_AFTER_S = 8.0
"""After that time without an outcome, and at least two attempts, the path counts as hung."""
_FIND_EVERY_S = 10.0
_DEADLINE_MS = 1000
_TEXT = "canary\tcanary"
"""With a TAB, since an hPLM may read pairs."""
_NO_HPLM = "canary"
_OF_TRITON = re.compile(
    r"stub process|is not healthy|unknown model|no available versions|not at ready state|server not ready"
    r"|server is stopping",
    re.IGNORECASE,
)
"""Errors that no model of ours has made."""
_UNKNOWN = re.compile(r"does not exist")
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a connection of HTTP/2 begins: its preface, and a frame of settings without any."""
FindHplm = Callable[[], str | None]
"""Returns the ID of an hPLM that is served, or None; may fail while the registry is away."""


class NoOutcomeError(Exception):
    """A canary got no answer and no error of a model."""


class Canary:
    """Asks on a thread of its own until it is closed.

    Args:
        http_url: host:port.
        grpc_url: host:port.
        find_hplm: Called for the first canary, and now and then while the last one found is not served.
        token: Shown in place of a tenant's.
        has_tls: Whether the gRPC port has certificates.
    """

    def __init__(self, http_url: str, grpc_url: str, find_hplm: FindHplm, token: str, has_tls: bool) -> None:
        parameters: dict[str, int | str] = {"deadline_ms": _DEADLINE_MS, "tenant_token": token}
        self._paths: dict[str, Callable[[str], str | None]] = {
            "HTTP": lambda hplm: _ask_http(http_url, hplm, parameters),
            "gRPC": lambda hplm: _greet_grpc(grpc_url) if has_tls else _ask_grpc(grpc_url, hplm, parameters),
        }
        self._find_hplm = find_hplm
        self._hplm = _NO_HPLM
        self._find_from_s = 0.0
        self._failing: dict[str, tuple[float, int, str]] = {}
        """By path: since when, how often, and how last."""
        self._first = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)
        self._thread.start()

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait until each path has been tried; whether all have."""
        return self._first.wait(timeout_s)

    def complaints(self) -> list[Complaint]:
        """Return the paths whose last canary failed; fatal where all of the last seconds did."""
        now = time.monotonic()
        return [
            Complaint(f"no answer over {path}: {error}", count > 1 and now - since > _FATAL_AFTER_S)
            for path, (since, count, error) in list(self._failing.items())
        ]

    def close(self) -> None:
        """Ask no more; a canary that is under way is left alone."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            for path in self._paths:
                self._try(path)
                if self._first.is_set() and self._closed.wait(_EVERY_S):
                    return
            self._first.set()

    def _try(self, path: str) -> None:
        began = time.monotonic()
        try:
            self._note_answer(self._paths[path](self._wanted()))
            self._failing.pop(path, None)
        except Exception as error:
            since, count, _ = self._failing.get(path, (began, 0, ""))
            self._failing[path] = since, count + 1, str(error) or type(error).__name__

    def _wanted(self) -> str:
        if self._hplm == _NO_HPLM and time.monotonic() >= self._find_from_s:
            self._find_from_s = time.monotonic() + _FIND_EVERY_S
            try:
                self._hplm = self._find_hplm() or _NO_HPLM
            except Exception:  # the registry is away, and what is served is served all the same
                self._hplm = _NO_HPLM
        return self._hplm

    def _note_answer(self, error: str | None) -> None:
        if error is None:
            return
        if _OF_TRITON.search(error):
            raise NoOutcomeError(error)
        if _UNKNOWN.search(error):
            self._hplm = _NO_HPLM


def _ask_http(url: str, hplm: str, parameters: Mapping[str, int | str]) -> str | None:
    """Return the error, or None for an answer."""
    inputs = [
        {"name": name, "shape": [1, 1], "datatype": "BYTES", "data": [value]}
        for name, value in (("MODEL", hplm), ("TEXT", _TEXT))
    ]
    connection = http.client.HTTPConnection(url, timeout=_TIMEOUT_S)
    try:
        body = json.dumps({"inputs": inputs, "parameters": parameters})
        connection.request("POST", "/v2/models/hplm/infer", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        return None if response.status == http.HTTPStatus.OK else content.decode(errors="replace")
    finally:
        connection.close()


def _ask_grpc(url: str, hplm: str, parameters: Mapping[str, int | str]) -> str | None:
    # Imported here: it takes a good part of a second, and a server is loading beside it.
    import numpy as np
    from tritonclient import grpc
    from tritonclient.utils import InferenceServerException

    inputs = []
    for name, value in (("MODEL", hplm), ("TEXT", _TEXT)):
        tensor = grpc.InferInput(name, [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[value.encode()]], dtype=np.object_))
        inputs.append(tensor)
    client = grpc.InferenceServerClient(url)
    try:
        client.infer("hplm", inputs, parameters=parameters, client_timeout=_TIMEOUT_S)
    except InferenceServerException as error:
        if error.status() in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"):
            raise NoOutcomeError(f"none within {_TIMEOUT_S:g} s") from error
        message: str = error.message()
        if error.status() == "StatusCode.UNAVAILABLE" and "connect" in message:
            raise NoOutcomeError(message) from error
        return message
    finally:
        client.close()
    return None


def _greet_grpc(url: str) -> None:
    """Begin a connection as gRPC does, and wait for the first word of the server, whosever its certificate is."""
    host, _, port = url.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    # A server that wants a certificate of its clients ends the connection, which is a word, too.
    with (
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as plain,
        suppress(ssl.SSLError, ConnectionResetError),
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(_GREETING)
        connection.recv(1)
