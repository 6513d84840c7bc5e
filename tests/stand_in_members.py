"""Servers of a fleet that start and end at once; the gateway in front of them is the real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from backends.held_roots import Roots
from builder.fleet.fleet_folder import ServerEntry
from builder.fleet.member_state import ENDED, MemberState
from builder.fleet.upstream import Upstream
from builder.serving.health import Verdict
from stand_in_servers import StandIn


class StandInMember:
    """In the place of a `Member`; `comes_back` is what it does once it is started again."""

    roots: Roots = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.server = StandIn(name)
        self.state = MemberState.STOPPED
        self.failure: str | None = None
        self.comes_back = MemberState.READY
        self.started = threading.Event()
        self._pid = 0

    def start(self) -> None:
        self.server.is_ready, self.state = self.comes_back is MemberState.READY, self.comes_back
        self._pid += 1
        self.started.set()

    def stop(self, on_poll: Callable[[], None] = lambda: None) -> Verdict:
        on_poll()
        self.server.is_ready, self.state = False, MemberState.STOPPED
        return Verdict(True, [])

    def kill(self) -> None:
        self.stop()

    def fail(self, reason: str) -> None:
        self.server.is_ready, self.state, self.failure = False, MemberState.FAILED, reason

    @property
    def is_running(self) -> bool:
        return self.state not in ENDED

    def upstream(self) -> Upstream:
        return self.server.upstream

    def wait_until_settled(self, timeout_s: float, gives_up: Callable[[], bool]) -> MemberState:
        end = time.monotonic() + timeout_s
        while self.state is MemberState.STARTING and time.monotonic() < end and not gives_up():
            time.sleep(0.01)
        return self.state

    def entry(self) -> ServerEntry:
        upstream = self.server.upstream
        return ServerEntry(
            server=self.name,
            state=self.state,
            reason=self.failure,
            http=upstream.http,
            grpc=upstream.grpc,
            metrics=None,
            health=upstream.health,
            pid=self._pid,
            restarts=0,
            log=f"{self.name}.log",
        )
