"""The address of the server: host:port with a protocol, or a URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

from hplm_client.errors import InvalidRequestError

Protocol = Literal["grpc", "http"]
_DEFAULT_PORTS: dict[str, int] = {"grpc": 8001, "http": 8000}


@dataclass(frozen=True)
class Address:
    protocol: Protocol
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(url: str, protocol: Protocol | None = None) -> Address:
    """`grpc://host:port`, `http://host:port`, or `host:port` with the protocol beside it (gRPC where none is given)."""
    scheme, has_scheme, rest = url.rpartition("://")
    chosen = scheme if has_scheme else protocol or "grpc"
    if chosen not in _DEFAULT_PORTS:
        raise InvalidRequestError(f"unknown protocol {chosen!r}; use 'grpc' or 'http'")
    if protocol is not None and protocol != chosen:
        raise InvalidRequestError(f"{url!r} and protocol={protocol!r} contradict each other")
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port or _DEFAULT_PORTS[chosen]
    except ValueError as error:
        raise InvalidRequestError(f"{url!r} has no valid port") from error
    if not parts.hostname or parts.path.strip("/") or parts.query or "@" in rest:
        raise InvalidRequestError(f"{url!r} is not of the form host:port")
    return Address(cast(Protocol, chosen), parts.hostname, port)
