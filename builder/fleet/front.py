"""The gateway of a fleet, started again where it dies or hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backends.errors import HplmError
from builder.fleet.admin import Admin
from builder.fleet.fleet_folder import GatewayEntry
from builder.fleet.gateway import Gateway
from builder.fleet.gateway_config import GatewaySettings
from builder.fleet.gateway_program import GatewayProgram
from builder.fleet.routing import Routing
from builder.fleet.upstream import Upstream
from builder.serving.exit_code import why_ended
from builder.serving.restarts import Restarts

_POLL_S = 0.1
_NOT_READY_S = 4.0
"""Of silence: longer than one question may take."""
_HANGS_S = 10.0


class Front:
    """One gateway after another on the same ports.

    Args:
        program: What is started.
        settings: Its public ports, claimed by the caller.
        log_path: The log of all of them.
        max_restarts: Within ten minutes.
        report: Takes lines for the operator.
    """

    def __init__(
        self,
        program: GatewayProgram,
        settings: GatewaySettings,
        log_path: Path,
        max_restarts: int,
        report: Callable[[str], None],
    ) -> None:
        self._program = program
        self._settings = settings
        self._log_path = log_path
        self._report = report
        self._restarts = Restarts(max_restarts)
        self._num_restarts = 0
        self._upstreams: Sequence[Upstream] = ()
        self._routing = Routing()
        self._gateway: Gateway | None = None
        self._silent_from_s: float | None = None

    def route(self, routing: Routing) -> None:
        """Send requests otherwise from now on, or from the first gateway's start on.

        Raises:
            GatewayFailedError: The gateway does not take that in; requests go where they went.
        """
        self._routing = routing
        if self._gateway is not None:
            self._gateway.route(routing)

    def start(self, upstreams: Sequence[Upstream], on_poll: Callable[[], object]) -> None:
        """Start the first gateway and return once it listens; what `on_poll` raises ends the waiting.

        Raises:
            GatewayFailedError: It has ended, or does not come to that in time.
        """
        self._upstreams = upstreams
        self._begin(on_poll)

    def look_after(self, on_poll: Callable[[], object]) -> None:
        """Start another gateway if the last one has ended, or has said nothing for long; to be called again and again.

        Raises:
            ServerStartError: That happens too often.
        """
        while self._gateway is not None and (reason := self._why_over(self._gateway)) is not None:
            self._replace(reason, on_poll)

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()

    @property
    def is_running(self) -> bool:
        return self._gateway is not None and self._gateway.poll() is None

    def why_not_ready(self) -> str | None:
        """Say why requests may get no answers; None where they get some."""
        if not self.is_running:
            return "the gateway is not running"
        return self._why_silent(_NOT_READY_S)

    @property
    def admin(self) -> Admin | None:
        return self._gateway.admin if self._gateway is not None else None

    @property
    def urls(self) -> str:
        """Where clients reach it."""
        return self.entry().urls

    def entry(self) -> GatewayEntry:
        gateway, admin = self._gateway, self.admin
        return GatewayEntry(
            state="ready" if self.is_running and admin is not None and admin.is_ready() else "not ready",
            http=self._http,
            grpc=self._grpc,
            pid=gateway.pid if gateway is not None and self.is_running else None,
            restarts=self._num_restarts,
            admin=str(admin.path) if admin is not None else None,
            log=str(self._log_path),
            has_tls=self._settings.tls is not None,
        )

    @property
    def _http(self) -> str:
        return f"{_in_url(self._settings.address)}:{self._settings.http}"

    @property
    def _grpc(self) -> str:
        return f"{_in_url(self._settings.address)}:{self._settings.grpc}"

    def _begin(self, on_poll: Callable[[], object]) -> None:
        gateway = Gateway(self._program, self._settings, self._upstreams, self._log_path, self._routing)
        gateway.start()
        self._gateway, self._silent_from_s = gateway, None
        gateway.wait_ready(on_poll)
        self._restarts.note_ready()

    def _why_over(self, gateway: Gateway) -> str | None:
        if (code := gateway.poll()) is not None:
            return why_ended("the gateway", code, gateway.failure_reason())
        asked_s = time.monotonic()
        if gateway.admin is None or gateway.admin.is_ready():
            self._silent_from_s = None
        elif self._silent_from_s is None:
            self._silent_from_s = asked_s
        return self._why_silent(_HANGS_S)

    def _why_silent(self, longest_s: float) -> str | None:
        from_s = self._silent_from_s  # another thread may look while this one is told
        silent_s = 0.0 if from_s is None else time.monotonic() - from_s
        return f"the gateway has said nothing for {silent_s:.0f} s" if silent_s > longest_s else None

    def _replace(self, reason: str, on_poll: Callable[[], object]) -> None:
        began = time.monotonic()
        self.stop()
        delay_s = self._restarts.next_delay_s(reason)
        self._num_restarts += 1
        self._report(f"{reason}; {self._restarts.count}" + (f", in {delay_s:g} s" if delay_s else ""))
        end = began + delay_s
        while time.monotonic() < end:
            on_poll()
            time.sleep(_POLL_S)
        try:
            self._begin(on_poll)
        except (HplmError, OSError) as error:  # a full disk, say
            self._report(f"the gateway was not started again: {error}")
            self.stop()
        else:
            self._report(f"the gateway is ready again {time.monotonic() - began:.1f} s after that was noticed")


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
