"""The watchdog of `hplm serve`: starts a server, looks after it, replaces it when a part dies or hangs, and drains it.

The whole server is replaced, never one model. Triton 24.10 can unload and load a model whose process has died, which is
somewhat quicker; but the requests that the process had accepted then stay without any outcome, as long as Triton runs.

Usage:
    with stop_requests() as stop, Supervisor(config, Supervision(), find_hplms, stop, report) as supervisor:
        supervisor.start()
        supervisor.stay()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import psutil

from backends.draining import begin_draining
from backends.errors import HplmError, InvalidArgumentError
from backends.seal import Seal
from builder.serving.canary import Canary, FindHplms
from builder.serving.config import MAX_PORT, ServerConfig
from builder.serving.errors import ServerStartError
from builder.serving.exit_code import why_ended
from builder.serving.exported_files import ExportedFiles
from builder.serving.health import HEALTH_PORT_OPTION, HealthPort, Verdict
from builder.serving.notify import ServiceManager
from builder.serving.restarts import MAX_RESTARTS, Restarts
from builder.serving.server import TritonServer
from builder.serving.vital_signs import Complaint, VitalSigns
from builder.termination import StopRequests

_LOOK_EVERY_S = 0.2
_NOTICE_S = 1.0
"""Time between 503 and the first rejection of a request, for those who look at `/readyz`."""
_NOTICED_S = 5.0
"""More time, for a gateway that is busy."""
_DRAINED_LOOKS = 3
"""Looks in a row, a tenth of a second apart, that find no open request: one may be on its way between two models."""
_DRAIN_POLL_S = 0.1
_FIRST_CANARY_S = 10.0
_SILENT_S = 1.8
_DEAD_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How a server is looked after.

    Attributes:
        health_address: Where the health port listens.
        health_port: None takes a free one.
        drain_s: Time to finish what was accepted; with 0, what waits is rejected.
        max_restarts: Restarts within ten minutes; with 0 the first death ends the server.
        port_option: What chooses the health port, for errors about it.
    """

    health_address: str = "127.0.0.1"
    health_port: int | None = None
    drain_s: float = 30.0
    max_restarts: int = MAX_RESTARTS
    port_option: str = HEALTH_PORT_OPTION

    def __post_init__(self) -> None:
        if self.health_port is not None and not 0 < self.health_port <= MAX_PORT:
            raise InvalidArgumentError(f"health port {self.health_port} is not between 1 and {MAX_PORT}")
        if self.max_restarts < 0:
            raise InvalidArgumentError(f"max_restarts is {self.max_restarts}; it can be 0 or more")


class _StopRequestedError(Exception):
    """Unwinds what the main thread does, at a point where that may end."""


class Supervisor:
    """One server after another on the same ports.

    Args:
        config: Of each server; ports that the first one chose are kept, and the export that there is now.
        supervision: How to look after it.
        find_hplms: Returns hPLMs for the canary.
        stop: Says when to stop.
        report: Takes lines for the operator.
        on_log: Takes the lines of the servers' logs.
        service: What systemd is told by; by default, as the environment says.
        is_noticed: Says whether those who send requests have seen that it is not ready, so that it may begin to reject.
    """

    def __init__(
        self,
        config: ServerConfig,
        supervision: Supervision,
        find_hplms: FindHplms,
        stop: StopRequests,
        report: Callable[[str], None],
        on_log: Callable[[str], None] | None = None,
        service: ServiceManager | None = None,
        is_noticed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._exported = ExportedFiles.read(config.repository)
        self._config = replace(config, exported=self._exported)
        self._supervision = supervision
        self._find_hplms = find_hplms
        self._stop = stop
        self._report = report
        self._on_log = on_log
        self._service = ServiceManager() if service is None else service
        self._is_noticed = is_noticed
        self._restarts = Restarts(supervision.max_restarts)
        self.server = TritonServer(self._config, on_log)
        self._vital_signs: VitalSigns | None = None
        self._canary: Canary | None = None
        self._phase: str | None = "the server is starting"
        """Why it cannot be ready; None while it serves."""
        self._complaints: list[Complaint] = []
        self._has_started = False
        self.num_restarts = 0
        self._before_each: Callable[[], None] = lambda: None
        self._looked_s = time.monotonic()
        self._is_drain_ordered = False
        self._drained: Verdict | None = None
        self._draining_ended = threading.Event()
        self._health: HealthPort | None = None

    def __enter__(self) -> Self:
        probes = {"/livez": self.is_alive, "/readyz": self.is_ready, "/startupz": self.has_started}
        address, port = self._supervision.health_address, self._supervision.health_port
        orders, option = {"/drain": self.drain}, self._supervision.port_option
        self._health = HealthPort(address, port, probes, orders, option)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._phase = "the server is stopping"
        self._end(at_once=True)
        if self._health is not None:
            self._health.close()

    @property
    def health_url(self) -> str:
        if self._health is None:
            raise ServerStartError("the health port is not open")
        return self._health.url

    @property
    def drained(self) -> Verdict | None:
        """How the drain ended; None where there was none."""
        return self._drained

    # --- the main thread ---

    def start(
        self, on_begun: Callable[[], None] = lambda: None, before_each: Callable[[], None] = lambda: None
    ) -> bool:
        """Start the first server and return once requests are answered; false where it is to stop before.

        What it has accepted by then, once Triton calls it ready, is finished.

        `on_begun` is called once the server's process runs; `before_each` before this and every later one is started.

        Raises:
            ServerStartError: It does not start, or its requests were not answered, also after too many restarts.
        """
        self._before_each = before_each
        try:
            self._begin(on_begun)
            while (reason := self._wait_for_failure(lambda: not self._complaints)) is not None:
                self._replace(reason)
        except _StopRequestedError:
            self._finish()
            return False
        self._has_started = True
        self._service.ready()
        return True

    def stay(self) -> None:
        """Look after the server until it is to stop, then finish what it has accepted and stop it.

        Raises:
            ServerStartError: It has died too often.
        """
        try:
            while True:
                if (reason := self._wait_for_failure()) is not None:
                    self._replace(reason)
        except _StopRequestedError:
            self._finish()

    def _finish(self) -> None:
        self._service.stopping()
        self._drain()
        self._end(at_once=self._drained is None)

    def _begin(self, on_begun: Callable[[], None] = lambda: None) -> None:
        self._before_each()
        self.server.start()
        on_begun()
        ports = self.server.ports
        self._config = replace(self._config, http_port=ports.http, grpc_port=ports.grpc, metrics_port=ports.metrics)
        self.server.wait_ready(on_poll=self._tick)
        self._restarts.note_loaded()
        try:
            self._vital_signs = signs = VitalSigns(self.server.pid, self.server.run_folder)
        except psutil.NoSuchProcess as error:
            raise ServerStartError("tritonserver ended as soon as it was ready") from error
        self._canary = self._new_canary(signs)
        began = time.monotonic()
        while not self._canary.wait_for_first(_DRAIN_POLL_S) and time.monotonic() - began < _FIRST_CANARY_S:
            self._tick()
        self._complaints = []
        self._note(self._look())
        self._phase = None

    def _new_canary(self, signs: VitalSigns) -> Canary:
        server, has_tls = self.server, self._config.tls is not None
        token = Seal.of_watched(server.pid, server.run_folder).canary_token
        num_answered = signs.num_answered if self._exported.is_batched_by_triton else lambda: 0
        return Canary(server.http_url, server.grpc_url, self._find_hplms, token, has_tls, num_answered)

    def _wait_for_failure(self, is_enough: Callable[[], bool] = lambda: False) -> str | None:
        """Look at the server until only a restart helps; returns why, or None where it `is_enough` before."""
        while not is_enough():
            self._tick()
            if self._is_drain_ordered:
                self._drain()
            if (code := self.server.poll()) is not None:
                return why_ended("tritonserver", code, self.server.failure_reason())
            if self._drained is None:
                self._note(self._look())
            for complaint in self._complaints:
                if complaint.fatal:
                    return complaint.text
            time.sleep(_LOOK_EVERY_S)
        return None

    def _look(self) -> list[Complaint]:
        signs, canary = self._vital_signs, self._canary
        return [] if signs is None or canary is None else [*signs.look(), *canary.complaints()]

    def _note(self, complaints: list[Complaint]) -> None:
        was_ready, self._complaints = not self._complaints, complaints
        if not complaints:
            self._restarts.note_ready()
        if complaints and was_ready:
            self._report(f"not ready: {complaints[0].text}")
        elif not complaints and not was_ready and self._has_started:
            self._report("ready again, by itself")

    def _replace(self, reason: str) -> None:
        began = time.monotonic()
        self._phase = f"the server is being restarted: {reason}"
        while True:
            self._end(at_once=True)
            if self._drained is not None:
                raise ServerStartError(f"{reason}, after it was drained")
            delay_s = self._restarts.next_delay_s(reason)
            self.num_restarts += 1
            self._report(f"{reason}; {self._restarts.count}" + (f", in {delay_s:g} s" if delay_s else ""))
            self._pause(delay_s)
            self.server = TritonServer(self._config, self._on_log)
            try:
                self._begin()
                break
            except (HplmError, OSError) as error:  # a full disk, say
                reason = f"the restart failed: {error}"
        if not self._complaints:
            self._report(f"ready again {time.monotonic() - began:.1f} s after that was noticed")

    def _drain(self) -> None:
        """Say that it is not ready, then accept nothing new, then wait until all that was accepted is answered."""
        signs, limit_s = self._vital_signs, self._supervision.drain_s
        if self._drained is not None or signs is None or not limit_s:
            return
        self._phase = "the server is draining"
        by = "POST /drain" if self._is_drain_ordered else self._stop.by
        self._report(f"draining by {by}: not ready any more; finishing what was accepted, for at most {limit_s:g} s")
        end = time.monotonic() + limit_s
        self._wait_while(lambda: not self._is_noticed(), min(time.monotonic() + _NOTICED_S, end))
        self._wait_while(lambda: True, min(time.monotonic() + _NOTICE_S, end))
        try:
            begin_draining(self.server.run_folder)
        except OSError as error:  # a full disk
            self._report(f"the models go on accepting requests: they cannot be told ({error})")
        quiet = 0

        def is_busy() -> bool:
            nonlocal quiet
            quiet = 0 if signs.num_open else quiet + 1
            return quiet < _DRAINED_LOOKS and self.server.poll() is None

        self._wait_while(is_busy, end)
        reason = self._why_not_drained(signs.num_open)
        self._drained = Verdict(reason is None, [] if reason is None else [reason])
        self._report("drained: nothing is open" if reason is None else f"not drained: {reason}")
        self._draining_ended.set()

    def _why_not_drained(self, num_open: int) -> str | None:
        if self.server.poll() is not None:
            return "the server has ended meanwhile"
        return f"{num_open} requests are still open" if num_open else None

    def _wait_while(self, condition: Callable[[], bool], end: float) -> None:
        """Wait during a drain, which a first signal to stop does not end."""
        while condition() and time.monotonic() < end:
            self._looked_s = time.monotonic()
            self._service.alive()
            time.sleep(_DRAIN_POLL_S)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tick()
            time.sleep(_DRAIN_POLL_S)

    def _tick(self) -> None:
        self._looked_s = time.monotonic()
        self._service.alive()
        if self._stop.requested:
            raise _StopRequestedError

    def _end(self, at_once: bool) -> None:
        if self._canary is not None:
            self._canary.close()
        if at_once:
            self.server.kill()
        else:
            self.server.stop()
        self._vital_signs = self._canary = None

    # --- the health port's threads ---

    def is_alive(self) -> Verdict:
        silent_s = time.monotonic() - self._looked_s
        is_so = silent_s < _DEAD_S
        return Verdict(is_so, [] if is_so else [f"the watchdog has done nothing for {silent_s:.0f} s"])

    def is_ready(self) -> Verdict:
        phase, signs = self._phase, self._vital_signs
        if phase is not None or signs is None:
            return Verdict(False, [phase or "the server is not running"])
        reasons = [complaint.text for complaint in [*self._complaints, *signs.silent_loops()]]
        if time.monotonic() - self._looked_s > _SILENT_S:
            reasons.append("the watchdog is busy")
        return Verdict(not reasons, list(dict.fromkeys(reasons)))

    def has_started(self) -> Verdict:
        return Verdict(self._has_started, [] if self._has_started else ["the server is starting"])

    def drain(self) -> Verdict:
        if self._phase is not None and not self._is_drain_ordered:
            return Verdict(False, [self._phase])
        if not self._supervision.drain_s:
            return Verdict(False, ["the server was started with --drain 0"])
        self._is_drain_ordered = True
        self._draining_ended.wait(self._supervision.drain_s + _DEAD_S)
        return self._drained or Verdict(False, [self._phase or "not drained"])
