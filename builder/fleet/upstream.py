"""What a gateway knows of the servers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A server as a gateway reaches it.

    Attributes:
        name: Its tenants stay with a server of this name, whatever its address and ports are.
        address: An IP address or a host name.
        health: The port that answers `/readyz`.
    """

    name: str
    address: str
    http: int
    grpc: int
    health: int

    @property
    def is_numeric(self) -> bool:
        """Whether the address needs no resolving."""
        try:
            ip_address(self.address)
        except ValueError:
            return False
        return True
