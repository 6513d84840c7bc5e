"""Orders to the fleet that runs on a home, and what is known of it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from backends.errors import ConflictError, NotFoundError, UnavailableError
from builder.fleet.admin import Admin, Routed
from builder.fleet.fleet_folder import FleetState, ServerEntry
from builder.fleet.member_state import ENDED, MemberState
from builder.serving.errors import BusyError

Verb = Literal["drain", "restart"]
_ANSWERS_S = 10.0
"""For a fleet to answer at all, which one that hangs does not; an order itself may take minutes."""
OF_GATEWAY = ("in_gateway", "requests", "errors", "open")
"""What the gateway alone knows of a server."""


def order(state: FleetState, verb: Verb, server: str, *, force: bool) -> list[str]:
    """Have the fleet drain or restart a server and wait for it; returns what was left undone, such as open requests.

    Raises:
        NotFoundError: The fleet has no such server.
        BusyError: Another order is at work.
        ConflictError: It cannot be done now.
        UnavailableError: The fleet does not answer, or runs on another machine.
    """
    require_here(state)
    _require_known(state, [server])
    require_alive(state)
    status, content = _ask(state, "POST", f"/{verb}/{server}{'/force' if force else ''}", state.order_limit_s)
    if status in (HTTPStatus.OK, HTTPStatus.GATEWAY_TIMEOUT):
        return list(content.get("reasons", []))
    error_type = BusyError if status == HTTPStatus.LOCKED else ConflictError
    raise error_type(str(content.get("error", HTTPStatus(status).phrase)))


def require_orders(state: FleetState, verb: Verb, servers: Sequence[str], *, force: bool) -> None:
    """Check a list of orders before the first one is given: the names, and that a server stays ready at each.

    Raises:
        NotFoundError: The fleet has no such server.
        ConflictError: One would be the last server that is ready.
    """
    _require_known(state, servers)
    states = {each.server: each.state for each in state.servers}
    ready = {server for server, of_server in states.items() if of_server == MemberState.READY}
    would_be = "is"
    for server in servers:
        # As the fleet itself: it may start one that is not ready, and end one that has ended, whatever others do.
        is_excused = server not in ready if verb == "restart" else states[server] in ENDED
        if not (force or is_excused or ready - {server}):
            is_last = server in ready
            reason = "the last server that is ready" if is_last else f"{states[server]}, and no other one is ready"
            raise ConflictError(f"{server} {would_be} {reason}; --force drains it all the same")
        if verb == "restart":
            ready.add(server)
        else:
            ready.discard(server)
            would_be = "would be"


def _require_known(state: FleetState, servers: Sequence[str]) -> None:
    known = [each.server for each in state.servers]
    for server in servers:
        if server not in known:
            raise NotFoundError(f"the fleet has no server {server!r}; it has {', '.join(known)}")


def require_alive(state: FleetState) -> None:
    """Reject a fleet that hangs.

    Raises:
        UnavailableError: Its health port does not answer, or says that the fleet's loop does nothing any more.
    """
    status, content = _ask(state, "GET", "/livez", _ANSWERS_S)
    if status != HTTPStatus.OK:
        why = "; ".join(content.get("reasons", [])) or HTTPStatus(status).phrase
        raise UnavailableError(f"the fleet at {state.health} hangs: {why}")


def _ask(state: FleetState, method: str, path: str, timeout_s: float) -> tuple[int, dict[str, Any]]:
    """Ask the fleet's health port.

    Raises:
        UnavailableError: It does not answer.
    """
    connection = http.client.HTTPConnection(state.health.removeprefix("http://"), timeout=timeout_s)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnavailableError(f"the fleet at {state.health} does not answer: {error}") from error
    finally:
        connection.close()


def require_here(state: FleetState) -> None:
    """Reject to order what a fleet of another machine is to do.

    Raises:
        UnavailableError: The fleet runs on another machine.
    """
    if state.host != (here := socket.gethostname()):
        raise UnavailableError(f"the fleet runs on {state.host}, and takes orders only there; this is {here}")


def server_rows(state: FleetState) -> list[dict[str, Any]]:
    """Describe the servers, with what the gateway has sent to each: None where it cannot be asked."""
    routed = _routed(state.gateway.admin)
    return [_row(each, routed) for each in state.servers]


def _routed(admin: str | None) -> dict[int, Routed] | None:
    if admin is None:
        return None
    try:
        return Admin(Path(admin)).routed()
    except UnavailableError:
        return None


def _row(entry: ServerEntry, routed: dict[int, Routed] | None) -> dict[str, Any]:
    return {
        "server": entry.server,
        "state": entry.state,
        "reason": entry.reason,
        **_sent(entry, routed),
        "restarts": entry.restarts,
        "pid": entry.pid,
        "http": entry.http,
        "grpc": entry.grpc,
        "metrics": entry.metrics,
        "health": entry.health,
        "log": entry.log,
        "release": entry.release,
        "export": entry.export,
        "roots": None if entry.roots is None else list(entry.roots),
    }


def _sent(entry: ServerEntry, routed: dict[int, Routed] | None) -> dict[str, Any]:
    if routed is None:
        return dict.fromkeys(OF_GATEWAY)
    of_ports = [routed[port] for port in (entry.http, entry.grpc) if port is not None and port in routed]
    return {
        "in_gateway": bool(of_ports) and all(each.is_healthy for each in of_ports),
        "requests": sum(each.requests for each in of_ports),
        "errors": sum(each.errors for each in of_ports),
        "open": sum(each.open for each in of_ports),
    }
