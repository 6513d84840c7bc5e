"""The addresses of servers: host:port with a protocol, or a URL; one or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, Union, cast
from urllib.parse import urlsplit

from hplm_client.errors import InvalidRequestError

Protocol = Literal["grpc", "http"]
Urls = Union[str, Sequence[str]]
_DEFAULT_PORTS: dict[str, int] = {"grpc": 8001, "http": 8000}
_SEPARATOR = ","
_SCHEME_END = "://"


@dataclass(frozen=True)
class Address:
    protocol: Protocol
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine's own."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # a name
            return False


def parse_address(url: str, protocol: Protocol | None = None) -> Address:
    """`grpc://host:port`, `http://host:port`, or `host:port` with the protocol beside it (gRPC where none is given)."""
    if _SEPARATOR in url:
        raise InvalidRequestError(f"{url!r} names several addresses where one is needed")
    scheme, has_scheme, rest = url.rpartition(_SCHEME_END)
    chosen = scheme if has_scheme else protocol or "grpc"
    if chosen not in _DEFAULT_PORTS:
        raise InvalidRequestError(f"unknown protocol {chosen!r}; use 'grpc' or 'http'{_how_encrypted(chosen)}")
    if protocol is not None and protocol != chosen:
        raise InvalidRequestError(f"{url!r} and protocol={protocol!r} contradict each other")
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port or _DEFAULT_PORTS[chosen]
    except ValueError as error:
        raise InvalidRequestError(f"{url!r} has no valid port") from error
    if not parts.hostname or parts.path.strip("/") or parts.query or "@" in rest:
        raise InvalidRequestError(f"{url!r} is not of the form host:port")
    try:
        parts.hostname.encode("idna")  # as a connection will
    except UnicodeError as error:
        raise InvalidRequestError(f"{url!r} has no valid host name") from error
    return Address(cast(Protocol, chosen), parts.hostname, port)


def parse_addresses(urls: Urls, protocol: Protocol | None = None) -> tuple[Address, ...]:
    """One address or several that answer alike, in a sequence or with commas between them: `grpc://a:8001,b:8001`.

    A scheme holds for the addresses after it, too. All speak one protocol, and none is named twice.
    """
    addresses: list[Address] = []
    for url in _listed(urls):
        if not url:
            raise InvalidRequestError(f"the list of addresses {urls!r} has an empty one")
        known = addresses[0].protocol if addresses and _SCHEME_END not in url else protocol
        address = parse_address(url, known)
        if addresses and address.protocol != addresses[0].protocol:
            raise InvalidRequestError(f"all addresses of a client speak one protocol; {urls!r} names two")
        if address in addresses:
            raise InvalidRequestError(f"{address} stands twice in {urls!r}")
        addresses.append(address)
    if not addresses:
        raise InvalidRequestError("a client needs an address; its list is empty")
    return tuple(addresses)


def _how_encrypted(scheme: str) -> str:
    return ", which ssl= or HPLM_CA encrypts" if scheme in ("https", "grpcs") else ""


def _listed(urls: Urls) -> list[str]:
    if isinstance(urls, str):
        return [url.strip() for url in urls.split(_SEPARATOR)]
    if not isinstance(urls, Sequence) or not all(isinstance(url, str) for url in urls):
        raise InvalidRequestError(f"addresses are a str or a sequence of them, not {urls!r:.80}")
    return [url.strip() for url in urls]
