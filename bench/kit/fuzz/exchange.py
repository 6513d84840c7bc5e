"""One client's connections to a server: sends cases without waiting, and says what became of each."""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import grpc

from bench.kit.fuzz.wire_case import GrpcCase, HttpCase, RelayCase, SocketCase, WireCase

TIMEOUT_S = 30.0
_SERVICE = "/inference.GRPCInferenceService/"
_READ_AT_ONCE = 1 << 16
_UNLIMITED = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class Fate(StrEnum):
    ANSWERED = "answered"
    REJECTED = "rejected"
    CLOSED = "closed"
    OPEN = "left open"
    """Nothing came within the time that the case waits; only for bytes that are no whole request."""
    SILENT = "silent"
    """A whole request to which nothing came."""


@dataclass(frozen=True)
class Outcome:
    """`content` is an answer's bytes, or what a rejection says."""

    fate: Fate
    content: bytes = b""


End = Callable[[], Outcome]
"""Waits for the outcome of a case that was sent."""


class Exchange:
    """Keeps its connections while the server does; from one thread."""

    def __init__(self, grpc_url: str, http_url: str) -> None:
        self._channel = grpc.insecure_channel(grpc_url, _UNLIMITED)
        self._addresses = {"grpc": _address(grpc_url), "http": _address(http_url)}
        self._idle: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()
        for connection in self._idle:
            connection.close()

    def ask(self, case: WireCase) -> Outcome:
        return self.send(case)()

    def is_heard(self) -> bool:
        """Whether anything listens at the server's ports."""
        try:
            for port in self._addresses:
                self._connected(port).close()
        except OSError:
            return False
        return True

    def send(self, case: WireCase) -> End:
        match case:
            case GrpcCase():
                return self._send_grpc(case)
            case HttpCase():
                return self._send_http(case)
            case RelayCase():
                return self._send_relay(case)
            case SocketCase():
                return self._send_bytes(case)

    def _send_grpc(self, case: GrpcCase) -> End:
        call = self._channel.unary_unary(f"{_SERVICE}{case.method}").future(case.message, timeout=TIMEOUT_S)

        def end() -> Outcome:
            try:
                return Outcome(Fate.ANSWERED, call.result() or b"")  # a stream may end without a message
            except grpc.RpcError as error:
                return _of_grpc_error(error)

        return end

    def _send_relay(self, case: RelayCase) -> End:
        first = self._send_grpc(GrpcCase(case.message))

        def end() -> Outcome:
            told = first()
            return self.ask(GrpcCase(case.relayed(told.content))) if told.fate is Fate.ANSWERED else told

        return end

    def _send_http(self, case: HttpCase) -> End:
        request, reused = _http_request(case), bool(self._idle)
        connection = self._idle.pop() if reused else None
        try:
            connection = connection or self._connected("http")
            connection.sendall(request)
        except OSError:
            _close(connection)
            return (lambda: self._again(request)) if reused else (lambda: Outcome(Fate.CLOSED))

        def end() -> Outcome:
            outcome = self._read_http(connection)
            return self._again(request) if reused and outcome.fate is Fate.CLOSED else outcome

        return end

    def _again(self, request: bytes) -> Outcome:
        """Send on a fresh connection what came to a kept one when the server had closed that."""
        connection = None
        try:
            connection = self._connected("http")
            connection.sendall(request)
        except OSError:
            _close(connection)
            return Outcome(Fate.CLOSED)
        return self._read_http(connection)

    def _read_http(self, connection: socket.socket) -> Outcome:
        response = http.client.HTTPResponse(connection, method="POST")
        try:
            response.begin()
            content, status, stays = response.read(), response.status, not response.will_close
        except TimeoutError:
            connection.close()
            return Outcome(Fate.SILENT)
        except (OSError, http.client.HTTPException):
            connection.close()
            return Outcome(Fate.CLOSED)
        if stays:
            self._idle.append(connection)
        else:
            connection.close()
        if status == HTTPStatus.OK:
            return Outcome(Fate.ANSWERED, content)
        return Outcome(Fate.REJECTED, b"%d %s" % (status, _message(content)))

    def _send_bytes(self, case: SocketCase) -> End:
        connection = None
        try:
            connection = self._connected(case.port)
            for part in case.parts:
                connection.sendall(part)
                if case.pause_s:
                    time.sleep(case.pause_s)
            if case.half_closes:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            _close(connection)
            return lambda: Outcome(Fate.CLOSED)
        until_s = time.monotonic() + case.waits_s
        return lambda: _read_bytes(connection, until_s)

    def _connected(self, port: str) -> socket.socket:
        connection = socket.create_connection(self._addresses[port], TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _read_bytes(connection: socket.socket, until_s: float) -> Outcome:
    content = io.BytesIO()
    with connection:
        while True:
            connection.settimeout(max(0.0, until_s - time.monotonic()))
            try:
                part = connection.recv(_READ_AT_ONCE)
            except (TimeoutError, BlockingIOError):
                break
            except OSError:
                return Outcome(Fate.CLOSED, content.getvalue())
            if not part:
                return Outcome(Fate.CLOSED, content.getvalue())
            content.write(part)
    return Outcome(Fate.ANSWERED if content.tell() else Fate.OPEN, content.getvalue())


def _http_request(case: HttpCase) -> bytes:
    headers = {"Host": "localhost", "Content-Length": str(len(case.body)), **case.headers}
    lines = [f"POST {case.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + case.body


def _of_grpc_error(error: Any) -> Outcome:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Outcome(Fate.SILENT)
    words = f"{code.name} {error.details()}".encode(errors="replace")
    return Outcome(Fate.CLOSED if "Socket closed" in str(error.details()) else Fate.REJECTED, words)


def _message(content: bytes) -> bytes:
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(content)["error"]).encode(errors="replace")
    return content[:200]


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition(":")
    return host, int(port)


def _close(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.close()
