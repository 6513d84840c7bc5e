"""The four ways to the server; each turns one call into rows or one of our errors."""

from __future__ import annotations

from typing import Protocol

from hplm_client.address import Address
from hplm_client.certificates import Certificates
from hplm_client.codec import Call


class Transport(Protocol):
    def send(self, call: Call, timeout_s: float) -> list[bytes]: ...

    def is_ready(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    async def send(self, call: Call, timeout_s: float) -> list[bytes]: ...

    async def is_ready(self, timeout_s: float) -> bool: ...

    async def close(self) -> None: ...


def open_transport(
    address: Address, certificates: Certificates | None = None, connect_s: float | None = None
) -> Transport:
    """Loads only the libraries of the protocol that is asked for."""
    if address.protocol == "grpc":
        from hplm_client.transports.grpc import GrpcTransport

        return GrpcTransport(address, certificates, connect_s)
    from hplm_client.transports.http import HttpTransport

    return HttpTransport(address, certificates, connect_s)


def open_async_transport(
    address: Address, certificates: Certificates | None = None, connect_s: float | None = None
) -> AsyncTransport:
    """Connects on first use, in the event loop that is running then."""
    if address.protocol == "grpc":
        from hplm_client.transports.grpc_aio import AsyncGrpcTransport

        return AsyncGrpcTransport(address, certificates, connect_s)
    from hplm_client.transports.http_aio import AsyncHttpTransport

    return AsyncHttpTransport(address, certificates, connect_s)
