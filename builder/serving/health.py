"""The health port of `hplm serve`: probes that tell the truth, and the order to drain.

Triton's own `/v2/health/ready` stays 200 where a model's process has died or hangs; these answers come from what the
watchdog knows, and heartbeats are read anew for each.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv6Address, ip_address
from socket import AF_INET, AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, SHUT_RDWR, socket
from typing import Any, NamedTuple

from backends.errors import ConflictError, InvalidArgumentError
from builder.serving.errors import BusyError, PortInUseError
from builder.serving.port_holder import in_use_by
from builder.serving.ports import ClaimedPorts

_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 64
HEALTH_PORT_OPTION = "--health-port"


class Verdict(NamedTuple):
    """An answer of the health port: yes or no, and why not."""

    is_so: bool
    reasons: list[str]


class HealthPort:
    """Listens from the start on; `close` ends it.

    Args:
        address: Where to listen.
        port: None takes a free one.
        probes: What to GET, by path; called from the port's threads.
        orders: What to POST, by path; an answer comes once an order is carried out, or its time is over. One that
            raises ConflictError cannot be carried out now.
        port_option: What chooses the port, for errors about it.
    """

    def __init__(
        self,
        address: str,
        port: int | None,
        probes: Mapping[str, Callable[[], Verdict]],
        orders: Mapping[str, Callable[[], Verdict]],
        port_option: str = HEALTH_PORT_OPTION,
    ) -> None:
        # A free one of the kernel's would be one of those of outgoing connections, and might be gone when a server of a
        # fleet is started again on it.
        claimed = ClaimedPorts.take([(address, None)] if port is None else [])
        number = claimed.numbers[0] if port is None else port
        family = AF_INET6 if ":" in address else AF_INET
        server_type = type("Server", (_Server,), {"address_family": family})
        handler = type("Handler", (_Handler,), {"probes": probes, "orders": orders})
        try:
            self._server: ThreadingHTTPServer = server_type((address, number), handler)
        except OSError as error:
            claimed.release()
            if error.errno == errno.EADDRINUSE:
                in_use = f"port {number} on {address} is in use{in_use_by(number)}"
                raise PortInUseError(f"{in_use}; give another {port_option}") from error
            raise InvalidArgumentError(f"cannot listen on port {number} of {address}: {error.strerror}") from error
        self._claimed = claimed
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="health", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._claimed.release()


class _Server(ThreadingHTTPServer):
    """A thread for each connection; where all are taken, the oldest connection is ended for a new one."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[int, socket] = {}
        """By the file's number, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        if self.address_family == AF_INET6:  # of every network: of IPv4 too, whatever the machine's default is
            self.socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock, suppress(OSError):
            self._open[request.fileno()] = request
            if len(self._open) > _MAX_CONNECTIONS:
                self._open.pop(next(iter(self._open))).shutdown(SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request.fileno(), None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that is gone is no error of ours."""


def _is_loopback(address: str) -> bool:
    """Whether it is this machine's; a port of IPv6 has callers of IPv4, too, such as `::ffff:127.0.0.1`."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server_version = "hplm"
    sys_version = ""
    probes: Mapping[str, Callable[[], Verdict]]
    orders: Mapping[str, Callable[[], Verdict]]

    def do_GET(self) -> None:
        probe = self.probes.get(self.path)
        if probe is not None:
            self._answer(probe(), HTTPStatus.SERVICE_UNAVAILABLE)
        elif self.path in self.orders:
            self._error(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.path} is an order: POST it")
        else:
            paths = f"{', '.join(self.probes)} and, to be POSTed, {', '.join(self.orders)}"
            self._error(HTTPStatus.NOT_FOUND, f"there are {paths}")

    def do_POST(self) -> None:
        order = self.orders.get(self.path)
        if order is None:
            posted = ", ".join(self.orders) or "nothing"
            self._error(HTTPStatus.NOT_FOUND, f"this is the health port: only {posted} is POSTed there")
        elif not _is_loopback(self.client_address[0]) or "Origin" in self.headers:
            self._error(HTTPStatus.FORBIDDEN, "only programs of this machine may order this, and no web page")
        else:
            self._obey(order)

    def _obey(self, order: Callable[[], Verdict]) -> None:
        try:
            verdict = order()
        except ConflictError as error:
            self._error(HTTPStatus.LOCKED if isinstance(error, BusyError) else HTTPStatus.CONFLICT, str(error))
        else:
            self._answer(verdict, HTTPStatus.GATEWAY_TIMEOUT)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the library rejects, such as another method, as everything else is answered."""
        status = HTTPStatus(code)
        self._error(status, message or status.phrase)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come each second."""

    def _answer(self, verdict: Verdict, otherwise: HTTPStatus) -> None:
        content: dict[str, object] = {"ok": verdict.is_so}
        if verdict.reasons:
            content["reasons"] = verdict.reasons
        self._send(HTTPStatus.OK if verdict.is_so else otherwise, content)

    def _error(self, status: HTTPStatus, text: str) -> None:
        self._send(status, {"error": text})

    def _send(self, status: HTTPStatus, content: dict[str, object]) -> None:
        body = json.dumps(content).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
