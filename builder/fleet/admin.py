"""Questions to a running Envoy, over its private socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from backends.errors import UnavailableError

_TIMEOUT_S = 2.0


class Routed(NamedTuple):
    """What the gateway knows of one server, over both protocols."""

    is_healthy: bool
    """To all of its clusters that the server is in."""
    may_be_asked: bool
    """Whether it is healthy to any of them."""
    requests: int
    """Tries since the gateway started, failed ones included."""
    errors: int
    open: int

    def beside(self, other: Routed) -> Routed:
        """The same server as another cluster knows it."""
        return Routed(
            self.is_healthy and other.is_healthy,
            self.may_be_asked or other.may_be_asked,
            self.requests + other.requests,
            self.errors + other.errors,
            self.open + other.open,
        )


class Admin:
    """The administrative socket of one Envoy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_ready(self) -> bool:
        """Whether it listens on its public ports, which it does once it has looked at all servers."""
        try:
            return self._ask("/ready")[0] == HTTPStatus.OK
        except UnavailableError:
            return False

    def routed(self) -> dict[int, Routed]:
        """What was sent to each server, by its ports; a server has an entry for each protocol.

        Raises:
            UnavailableError: The gateway does not answer.
        """
        found: dict[int, Routed] = {}
        for cluster in self._clusters():
            for host in cluster.get("host_statuses", ()):
                port, routed = host["address"]["socket_address"]["port_value"], _routed(host)
                found[port] = routed.beside(found[port]) if port in found else routed
        return found

    def knows(self, clusters: Collection[str]) -> bool:
        """Whether it sends requests to all these clusters when it is told to."""
        return {*clusters} <= {each["name"] for each in self._clusters()}

    def _clusters(self) -> list[dict[str, Any]]:
        content: dict[str, Any] = json.loads(self._ask("/clusters?format=json")[1])
        return list(content["cluster_statuses"])

    def _ask(self, path: str) -> tuple[int, bytes]:
        connection = _UnixConnection(self.path)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the gateway does not answer: {error}") from error
        finally:
            connection.close()


def _routed(host: dict[str, Any]) -> Routed:
    stats = {each["name"]: int(each.get("value", 0)) for each in host["stats"]}
    health = host.get("health_status", {})
    is_healthy = not (health.get("failed_active_health_check") or health.get("pending_active_hc"))
    return Routed(is_healthy, is_healthy, stats["rq_total"], stats["rq_error"], stats["rq_active"])


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
