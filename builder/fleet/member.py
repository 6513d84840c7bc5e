"""One server of a fleet under its watchdog, on a thread of its own.

Several watchdogs of one process rather than a process each: the gateway's checks and `hplm fleet status` ask one place,
and all of them end with it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from backends.errors import HplmError
from backends.held_roots import Roots
from builder.fleet.fleet_folder import ServerEntry
from builder.fleet.member_plan import MemberStart
from builder.fleet.member_state import MemberState
from builder.fleet.started_with import StartedWith, release_if_known
from builder.fleet.upstream import Upstream
from builder.serving.config import Ports, ServerConfig
from builder.serving.errors import ServerStartError
from builder.serving.health import Verdict
from builder.serving.log import is_complaint
from builder.serving.notify import ServiceManager
from builder.serving.supervisor import Supervision, Supervisor
from builder.serving.watchdog_log import is_of_watchdog, note
from builder.termination import StopRequests

_POLL_S = 0.05
_LOOK_EVERY_S = 0.5
_BY = "the fleet"


def _ignore() -> None:
    pass


class Member:
    """A server that can be started again, on the ports that it had at first.

    Args:
        name: Of the server in this fleet.
        start_of: Makes what it is started with; called for each start.
        supervision: How it is looked after.
        find_hplms: Returns hPLMs of some roots for the canary.
        cores: Where it computes.
        log_path: Its log.
        report: Takes lines for the operator.
        is_unrouted: Says whether the gateway has stopped to ask it.
    """

    def __init__(
        self,
        name: str,
        start_of: Callable[[], MemberStart],
        supervision: Supervision,
        find_hplms: Callable[[Roots], Sequence[str]],
        cores: Collection[int],
        log_path: Path,
        report: Callable[[str], None],
        is_unrouted: Callable[[Upstream | None], bool],
    ) -> None:
        self.name = name
        self._start_of = start_of
        self._supervision = supervision
        self._find_hplms = find_hplms
        self._cores = cores
        self._log_path = log_path
        self._report = report
        self._is_unrouted = is_unrouted
        self._ports: Ports | None = None
        self.roots: Roots = None
        """What it holds, or held last."""
        self._started_with = StartedWith("", "", None)
        self._stop = StopRequests(_BY)
        self._supervisor: Supervisor | None = None
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        self._stop, self._failure, self._supervisor = StopRequests(_BY), None, None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self, on_poll: Callable[[], None] = _ignore) -> Verdict:
        """Finish what it has accepted, and end it; whether nothing was left open. `on_poll` is called meanwhile.

        One that has failed before is stopped from now on.
        """
        if not self.is_running:
            self._failure = None
        self._stop.requested = True
        while not self._join(_LOOK_EVERY_S):
            on_poll()
        supervisor, self._supervisor = self._supervisor, None
        return (supervisor.drained if supervisor is not None else None) or Verdict(True, [])

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._stop.requested = True
        while not self._join(_LOOK_EVERY_S):
            if self._supervisor is not None:
                self._supervisor.server.kill()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def state(self) -> MemberState:
        return self._state_and_reason()[0]

    @property
    def failure(self) -> str | None:
        """Why it has ended by itself; None where it has not."""
        return None if self.is_running else self._failure

    def upstream(self) -> Upstream | None:
        """Return where the gateway reaches it; None before its process runs for the first time."""
        if self._ports is None or self._supervision.health_port is None:
            return None
        return Upstream(
            name=self.name,
            address="127.0.0.1",
            http=self._ports.http,
            grpc=self._ports.grpc,
            health=self._supervision.health_port,
        )

    def entry(self) -> ServerEntry:
        state, reason = self._state_and_reason()
        ports, supervisor = self._ports, self._supervisor
        return ServerEntry(
            server=self.name,
            state=state,
            reason=reason,
            http=ports.http if ports else None,
            grpc=ports.grpc if ports else None,
            metrics=ports.metrics if ports else None,
            health=self._supervision.health_port,
            pid=_pid(supervisor) if self.is_running else None,
            restarts=supervisor.num_restarts if supervisor else 0,
            log=str(self._log_path),
            release=self._started_with.release,
            export=self._started_with.export,
            roots=self._started_with.roots,
        )

    def wait_until_settled(self, timeout_s: float, gives_up: Callable[[], bool]) -> MemberState:
        """Wait until it is ready, or has ended, or `gives_up` says so; returns what it then does."""
        end = time.monotonic() + timeout_s
        while self.state in (MemberState.STARTING, MemberState.NOT_READY) and time.monotonic() < end and not gives_up():
            time.sleep(_POLL_S)
        return self.state

    def _state_and_reason(self) -> tuple[MemberState, str | None]:
        supervisor = self._supervisor
        if not self.is_running:
            return (MemberState.FAILED, self._failure) if self._failure else (MemberState.STOPPED, None)
        if supervisor is None or not supervisor.has_started().is_so:
            return MemberState.STARTING, None
        if self._stop.requested:
            return MemberState.DRAINING, None
        ready = supervisor.is_ready()
        return (MemberState.READY, None) if ready.is_so else (MemberState.NOT_READY, "; ".join(ready.reasons))

    # --- its thread ---

    def _run(self) -> None:
        self._failure = "a defect of its watchdog ended it"
        try:
            # Inherited by every process that this thread starts; the rest of this program keeps all cores.
            os.sched_setaffinity(0, self._cores)
            self._serve(*self._start_of())
            self._failure = None
        except (HplmError, OSError) as error:
            self._failure = str(error)
            self._report(f"{self.name} has failed: {error}")

    def _serve(self, config: ServerConfig, roots: Roots) -> None:
        self.roots = roots
        if self._ports is not None:
            ports = self._ports
            config = replace(config, http_port=ports.http, grpc_port=ports.grpc, metrics_port=ports.metrics)
        service = ServiceManager({})  # the fleet speaks for all of its servers
        find_hplms = partial(self._find_hplms, roots)
        started_with = _looked_at(config.repository, roots)
        with Supervisor(
            config,
            self._supervision,
            find_hplms,
            self._stop,
            self._say,
            self._on_log,
            service,
            lambda: self._is_unrouted(self.upstream()),
        ) as supervisor:
            self._supervisor = supervisor
            health_port = int(supervisor.health_url.rpartition(":")[2])
            self._supervision = replace(self._supervision, health_port=health_port)
            if supervisor.start(partial(self._note_ports, supervisor), partial(self._note_start, started_with)):
                self._say("ready")
                supervisor.stay()
                self._say("stopped")

    def _note_ports(self, supervisor: Supervisor) -> None:
        self._ports = supervisor.server.ports

    def _note_start(self, started_with: StartedWith) -> None:
        """A restart by the watchdog keeps the export, but what is installed may be another release by then."""
        release = release_if_known() if started_with.release else ""
        self._started_with = replace(started_with, release=release)

    def _say(self, line: str) -> None:
        self._report(f"{self.name}: {line}")
        note(self._log_path, line)

    def _on_log(self, line: str) -> None:
        if is_complaint(line) and not is_of_watchdog(line):
            self._report(f"{self.name}: {line}")

    def _join(self, timeout_s: float) -> bool:
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.is_running


def _looked_at(repository: Path, roots: Roots) -> StartedWith:
    """Look at what a server is about to be started with; what is unknown counts as old."""
    try:
        return StartedWith.now(repository, roots)
    except (HplmError, OSError):
        return StartedWith("", "", roots)


def _pid(supervisor: Supervisor | None) -> int | None:
    if supervisor is None:
        return None
    try:
        return supervisor.server.pid
    except ServerStartError:  # between two servers
        return None
