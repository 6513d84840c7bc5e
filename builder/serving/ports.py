"""Ports that are checked, or found, before the server starts.

Between the check and the server's own bind a port must be free, so it cannot be held by a real socket. What holds it
against other servers of this project is a claim: a socket of the same number in Linux's abstract namespace, which has
the scope of ports (the network namespace), is taken atomically, and vanishes with its process. Free ports come from
below the kernel's range of outgoing connections, so that no client happens to take one. Triton binds its ports only
once all models are loaded, so its own error would come minutes later.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from backends.errors import InvalidArgumentError, UnavailableError
from builder.serving.config import Ports, ServerConfig
from builder.serving.errors import PortInUseError
from builder.serving.port_holder import claim_name, in_use_by

_FREE_PORTS = range(20_000, 32_000)
_MAX_TRIES = 200


@dataclass(slots=True)
class ClaimedPorts:
    """Ports of this machine, claimed until `release`."""

    numbers: list[int]
    _sockets: list[socket.socket] = field(default_factory=list)

    @classmethod
    def take(cls, listeners: Sequence[tuple[str, int | None]]) -> Self:
        """Claim a port for each address: the given one, or a free one for None; all or none."""
        sockets: list[socket.socket] = []
        try:
            given = [port and _claim_given(address, port, sockets) for address, port in listeners]
            claimed = [
                number or _claim_free(address, sockets) for number, (address, _) in zip(given, listeners, strict=True)
            ]
        except BaseException:
            _close_all(sockets)
            raise
        return cls(claimed, sockets)

    def release(self) -> None:
        _close_all(self._sockets)


@dataclass(slots=True)
class PortClaims:
    """The ports of one server, claimed until `release`."""

    ports: Ports
    _claimed: ClaimedPorts

    @classmethod
    def take(cls, config: ServerConfig) -> Self:
        """Claim the ports that are given, and free ones for the rest; all or none."""
        claimed = ClaimedPorts.take(
            [
                (config.http_address, config.http_port),
                (config.address, config.grpc_port),
                (config.metrics_address or config.address, config.metrics_port),
            ]
        )
        return cls(Ports(*claimed.numbers), claimed)

    def release(self) -> None:
        self._claimed.release()


def require_free(ports: Mapping[str, tuple[str, int | None]]) -> None:
    """Reject ports that other programs have, all at once; what takes them later finds what has changed by then.

    Args:
        ports: Address and port by the option that chooses it; None for a free one.

    Raises:
        PortInUseError: Some are in use.
        InvalidArgumentError: There is no such address, or this user may not listen there.
    """
    given = [(option, address, port) for option, (address, port) in ports.items() if port is not None]
    in_use = [each for each in given if not _is_free(*each[1:])]
    if len(in_use) == 1:
        ((option, address, port),) = in_use
        holder = in_use_by(port)
        raise PortInUseError(
            f"port {port} on {address} is in use{holder}; give another {option}, or stop the program that has it"
        )
    if in_use:
        named = ", ".join(f"{option} {port}{in_use_by(port)}" for option, _, port in in_use)
        raise PortInUseError(f"ports are in use: {named}; give others, or stop the programs that have them")


def _is_free(address: str, port: int) -> bool:
    """Whether no server of this project has claimed a port, and no program listens there."""
    claim = _claim(port)
    is_free = claim is not None and _can_listen(address, port)
    _close_all([claim] if claim else [])
    return is_free


def _claim_given(address: str, port: int, sockets: list[socket.socket]) -> int:
    claim = _claim(port)
    if claim is None or not _can_listen(address, port):
        _close_all([claim] if claim else [])
        raise PortInUseError(
            f"port {port} on {address} is in use{in_use_by(port)}; give another one, or stop the program that has it"
        )
    sockets.append(claim)
    return port


def _claim_free(address: str, sockets: list[socket.socket]) -> int:
    for port in random.SystemRandom().sample(_FREE_PORTS, _MAX_TRIES):
        claim = _claim(port)
        if claim is None:
            continue
        if _can_listen(address, port):
            sockets.append(claim)
            return port
        claim.close()
    raise UnavailableError(f"no free port on {address} after {_MAX_TRIES} tries")


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(claim_name(port))
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return claim


def _can_listen(address: str, port: int) -> bool:
    try:
        family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As the server does it: connections that an earlier server left open do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise InvalidArgumentError(f"cannot listen on port {port} of {address}: {error.strerror}") from error
    return True


def _close_all(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
    sockets.clear()
