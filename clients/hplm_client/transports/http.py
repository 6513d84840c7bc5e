"""HTTP with blocking calls; safe between threads.

Bodies are tritonclient's, connections are the standard library's: tritonclient's own bind each connection to the thread
that opened it (gevent) and do not distinguish a connection that failed from one that broke.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import tritonclient.http as triton

from hplm_client.address import Address
from hplm_client.certificates import Certificates
from hplm_client.codec import MODEL_NAME, Call, inputs_of, rows_of
from hplm_client.errors import ConnectionFailedError, ConnectionLostError
from hplm_client.faults import from_status, readable, timed_out, typed_faults
from hplm_client.wrong_port import grpc_port, is_reply_of_grpc

_LENGTH_HEADER = "Inference-Header-Content-Length"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class _Reply:
    status: int
    header_length: str | None
    body: bytes


class HttpTransport:
    def __init__(
        self, address: Address, certificates: Certificates | None = None, connect_s: float | None = None
    ) -> None:
        self._address = address
        self._connect_s = connect_s
        self._context = certificates.context() if certificates is not None else None
        self._idle: list[http.client.HTTPConnection] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def send(self, call: Call, timeout_s: float) -> list[bytes]:
        body, header_length = triton.InferenceServerClient.generate_request_body(
            inputs_of(call, triton.InferInput), request_id=call.request_id, parameters=dict(call.parameters)
        )
        headers = {**call.headers, _LENGTH_HEADER: str(header_length), "Content-Type": "application/octet-stream"}
        reply = self._exchange("POST", f"/v2/models/{MODEL_NAME}/infer", timeout_s, body, headers)
        if reply.status != http.client.OK:
            raise from_status(str(reply.status), _reason(reply), str(self._address))
        address = str(self._address)
        with typed_faults(address, timeout_s), readable(address):
            result = triton.InferenceServerClient.parse_response_body(reply.body, header_length=reply.header_length)
        return rows_of(result, call)

    def is_ready(self, timeout_s: float) -> bool:
        return self._exchange("GET", f"/v2/models/{MODEL_NAME}/ready", timeout_s).status == http.client.OK

    def close(self) -> None:
        """Close the idle connections; one with an exchange under way is closed at its end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: bytes = b"",
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> _Reply:
        ends_at = time.monotonic() + timeout_s
        connection = self._connection(timeout_s)
        with self._using(connection, timeout_s):
            _limit(connection, ends_at)
            connection.request(method, path, body or None, headers)
            _limit(connection, ends_at)
            response = connection.getresponse()
            return _Reply(response.status, response.getheader(_LENGTH_HEADER), response.read())

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        while (connection := self._taken()) is not None:
            if _is_usable(connection):
                return connection
            connection.close()
        connection = self._new_connection(timeout_s if self._connect_s is None else min(timeout_s, self._connect_s))
        try:
            connection.connect()
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionFailedError(f"cannot connect to {self._address}: {reason}") from error
        return connection

    def _taken(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _new_connection(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)

    @contextmanager
    def _using(self, connection: http.client.HTTPConnection, timeout_s: float) -> Iterator[None]:
        """Keep the connection for the next exchange, unless this one failed and may have left bytes on it."""
        try:
            yield
        except socket.timeout as error:
            connection.close()
            raise timed_out(timeout_s) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if is_reply_of_grpc(error):
                raise grpc_port(self._address) from error
            reason = str(error) or type(error).__name__
            raise ConnectionLostError(f"the connection to {self._address} broke while waiting: {reason}") from error
        except BaseException:
            connection.close()
            raise
        self._keep(connection)


def _limit(connection: http.client.HTTPConnection, ends_at: float) -> None:
    """Limit the next operation on the connection to the remaining time."""
    remaining_s = ends_at - time.monotonic()
    if remaining_s <= 0:
        raise socket.timeout
    connection.sock.settimeout(remaining_s)


def _is_usable(connection: http.client.HTTPConnection) -> bool:
    """An idle connection on which there is something to read was closed by the server."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _reason(reply: _Reply) -> str | None:
    try:
        return str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        return None
