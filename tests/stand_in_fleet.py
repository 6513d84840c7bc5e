"""A fleet as `hplm fleet apply` sees it: a folder that says who runs, and a port that takes orders, without servers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Self

from backends.errors import ConflictError
from backends.home import Home
from builder.fleet.fleet_folder import FleetFolder, FleetState, GatewayEntry, ServerEntry
from builder.fleet.fleet_placement import FleetPlacement
from builder.serving.health import HealthPort, Verdict
from waiting import LIMIT_S

GATEWAY = GatewayEntry(state="ready", http="h:1", grpc="h:2", pid=6, restarts=0, admin=None, log="gateway.log")


class StandInFleet:
    """Restarts and drains at once; `restarted` are its servers in the order of their restarts, `drained` likewise.

    `failing` are servers that do not come back; `before_restart` is called with the name of each that is stopped;
    `is_ordering` says that another order is at work, and `order_limit_s` how long one takes at most. `why_it_hangs` is
    what its health port says of its loop.
    """

    def __init__(self, home: Home, count: int) -> None:
        self.folder = FleetFolder(home)
        self.restarted: list[str] = []
        self.failing: set[str] = set()
        self.is_ordering = False
        self.why_it_hangs: list[str] = []
        self.order_limit_s = LIMIT_S
        self.before_restart: Callable[[str], None] = lambda _: None
        self.drained: list[str] = []
        self._pid = 100
        self._resources = ExitStack()
        self._names = [f"server-{number}" for number in range(1, count + 1)]
        self.entries: dict[str, ServerEntry] = {}

    def __enter__(self) -> Self:
        self._claim = self._resources.enter_context(ExitStack())
        self._claim.enter_context(self.folder.claimed())
        orders = {
            f"/{verb}/{name}{'/force' if is_forced else ''}": partial(carry_out, name, is_forced)
            for verb, carry_out in (("restart", self._restart), ("drain", self._drain))
            for name in self._names
            for is_forced in (False, True)
        }
        probes = {"/livez": lambda: Verdict(not self.why_it_hangs, self.why_it_hangs)}
        self._health = HealthPort("127.0.0.1", None, probes, orders)
        self._resources.callback(self._health.close)
        for name in self._names:
            self.entries[name] = self._started(name)
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def end(self) -> None:
        """Run no more, as if its process ended once it has answered."""
        self._claim.close()

    def set(self, name: str, state: str, reason: str | None = None) -> None:
        self.entries[name] = replace(self.entries[name], state=state, reason=reason)
        self.write()

    def write(self, health: str | None = None) -> None:
        """Say who runs; `health` is another port than its own."""
        servers = list(self.entries.values())
        self.folder.write(
            FleetState(
                pid=7,
                host=socket.gethostname(),
                health=health or self._health.url,
                gateway=GATEWAY,
                servers=servers,
                is_ordering=self.is_ordering,
                order_limit_s=self.order_limit_s,
            )
        )

    def _restart(self, name: str, is_forced: bool) -> Verdict:
        others = [each for each in self.entries.values() if each.server != name and each.state == "ready"]
        if not others and not is_forced and self.entries[name].state == "ready":
            raise ConflictError(f"{name} is the last server that is ready")
        self.before_restart(name)
        self.restarted.append(name)
        if name in self.failing:
            self.set(name, "failed", "it ran out of luck")
            return Verdict(False, [f"{name} is failed"])
        self.entries[name] = self._started(name)
        self.write()
        return Verdict(True, [])

    def _drain(self, name: str, is_forced: bool) -> Verdict:
        self.drained.append(name)
        self.set(name, "stopped")
        return Verdict(True, [])

    def _started(self, name: str) -> ServerEntry:
        self._pid += 1
        runs = self.folder.wanted([name], FleetPlacement.read(self.folder.placement))[name]
        return ServerEntry(
            server=name,
            state="ready",
            reason=None,
            http=1,
            grpc=2,
            metrics=3,
            health=4,
            pid=self._pid,
            restarts=0,
            log=f"{name}.log",
            release=runs.release,
            export=runs.export,
            roots=runs.roots,
        )
