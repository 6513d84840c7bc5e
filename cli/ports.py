"""Ports as options name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backends.errors import InvalidArgumentError

ANY_PORT = 0
_EVERY_NETWORK = "0.0.0.0"
_BY_DEFAULT = "--health-port, by default the one after --metrics"


class Listener(NamedTuple):
    address: str
    port: int

    def meets(self, other: Listener) -> bool:
        """Whether both listen on one network, where a port belongs to one of them."""
        return self.address == other.address or _EVERY_NETWORK in (self.address, other.address)


def require_ports(ports: Mapping[str, int]) -> None:
    """Check ports by the options that name them; 0 takes a free one.

    Raises:
        InvalidArgumentError: There is no such port, or two options name the same.
    """
    from builder.serving.config import MAX_PORT

    named: dict[int, str] = {}
    for option, port in ports.items():
        if not ANY_PORT <= port <= MAX_PORT:
            raise InvalidArgumentError(f"{option}: {port} is no port; give 1 to {MAX_PORT}, or 0 for a free one")
        if port != ANY_PORT and (other := named.setdefault(port, option)) != option:
            raise InvalidArgumentError(f"port {port} is given twice, as {other} and as {option}; each needs its own")


def require_health_port(health: Listener, others: Mapping[str, Listener], option: str = "--health-port") -> None:
    """Check the ports of a program, by their options; those on other networks may have the number of its probes.

    Raises:
        InvalidArgumentError: There is no such port, or two options name the same.
    """
    require_ports({other: listener.port for other, listener in others.items()})
    met = {other: listener.port for other, listener in others.items() if listener.meets(health)}
    require_ports({**met, option: health.port})


def require_server_ports(
    http: Listener, grpc: Listener, metrics: Listener, health_address: str, health_port: int | None
) -> int | None:
    """Check the ports of a server, and return that of its probes: by default the one after --metrics; None: a free one.

    Raises:
        InvalidArgumentError: There is no such port, or two options name the same.
    """
    others = {"--http": http, "--grpc": grpc, "--metrics": metrics}
    if health_port is not None:
        require_health_port(Listener(health_address, health_port), others)
        return health_port or None
    by_default = metrics.port + 1 if metrics.port != ANY_PORT else ANY_PORT
    require_health_port(Listener(health_address, by_default), others, _BY_DEFAULT)
    return by_default or None
