"""Ports as options name them."""

from __future__ import annotations

from collections.abc import Mapping

from backends.errors import InvalidArgumentError

ANY_PORT = 0
_BY_DEFAULT = "--health-port, by default the one after --metrics"


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


def require_server_ports(http: int, grpc: int, metrics: int, health: int | None) -> int | None:
    """Check the ports of a server, and return that of its probes: by default the one after --metrics; None: a free one.

    Raises:
        InvalidArgumentError: There is no such port, or two options name the same.
    """
    given = {"--http": http, "--grpc": grpc, "--metrics": metrics}
    require_ports(given)
    by_default = metrics + 1 if metrics != ANY_PORT else ANY_PORT
    option, port = (_BY_DEFAULT, by_default) if health is None else ("--health-port", health)
    require_ports({**given, option: port})
    return port or None
