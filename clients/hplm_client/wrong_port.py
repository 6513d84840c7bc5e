"""Recognises a port that speaks the other protocol: HTTP where gRPC was asked for, and the reverse."""

from __future__ import annotations

import re
import socket

from hplm_client.address import Address
from hplm_client.errors import WrongPortError

_PROBE_TIMEOUT_S = 0.5
_QUESTION = b"GET /v2/health/live HTTP/1.0\r\n\r\n"
_FRAME_OF_HTTP_2 = re.compile(r"\x00\x00|\\+x00\\+x00")
"""The beginning of what a gRPC server sends to every caller, as an error shows it."""


def speaks_http(address: Address) -> bool:
    """Ask the port a question that only HTTP servers understand; for use after gRPC has failed."""
    try:
        with socket.create_connection((address.host, address.port), _PROBE_TIMEOUT_S) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            connection.sendall(_QUESTION)
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def is_reply_of_grpc(error: BaseException) -> bool:
    """Return whether what an HTTP library could not read is a gRPC server's greeting."""
    return _FRAME_OF_HTTP_2.search(str(error)) is not None


def http_port(address: Address) -> WrongPortError:
    return WrongPortError(
        f"{address} speaks HTTP, not gRPC; give the gRPC port, or http://{address} if it is Triton's HTTP port"
    )


def grpc_port(address: Address) -> WrongPortError:
    return WrongPortError(f"{address} speaks gRPC, not HTTP; use grpc://{address}, or the HTTP port")
