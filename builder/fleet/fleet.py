"""Several servers of one home on this machine, and a gateway in front of them.

Usage:
    with stop_requests() as stop, Fleet(home, settings, stop, report) as fleet:
        if fleet.start():
            fleet.stay()
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Self

from backends.errors import ConflictError, NotFoundError, UnavailableError
from backends.held_roots import Roots
from backends.home import Home
from builder.fleet.admin import Routed
from builder.fleet.fleet_folder import FleetFolder, FleetState
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.front import Front
from builder.fleet.gateway_config import GatewaySettings
from builder.fleet.gateway_program import find_gateway
from builder.fleet.member import Member
from builder.fleet.member_plan import core_shares, member_start, member_supervision, require_free_ports
from builder.fleet.member_state import ENDED, MemberState
from builder.fleet.placed_routes import PlacedRoutes
from builder.fleet.settings import HEALTH_ADDRESS, FleetSettings
from builder.fleet.shown_state import LastServers, ShownState
from builder.fleet.startable import require_startable
from builder.fleet.started_with import release_if_known
from builder.fleet.upstream import Upstream
from builder.serving.errors import BusyError, ServerStartError
from builder.serving.health import HealthPort, Verdict
from builder.serving.notify import ServiceManager
from builder.serving.ports import ClaimedPorts
from builder.serving.served_hplms import some_hplms
from builder.termination import StopRequests

_LOOK_EVERY_S = 0.2
_ROUTED_S = 5.0
_SILENT_S = 10.0


class _StopRequestedError(Exception):
    """Unwinds what the main thread does, at a point where that may end."""


class _DrainedError(Exception):
    """Unwinds the wait for a gateway when the server that it is for has ended."""


class Fleet:
    """The fleet of a home, until this program ends.

    Args:
        home: What the servers serve.
        settings: How many servers, and where.
        stop: Says when to stop.
        report: Takes lines for the operator.
    """

    def __init__(self, home: Home, settings: FleetSettings, stop: StopRequests, report: Callable[[str], None]) -> None:
        self._home = home
        self._settings = settings
        self._stop = stop
        self._report = report
        self._release = release_if_known()
        self._folder = FleetFolder(home)
        self._shown = ShownState(self._folder, self._described, report)
        self._last_servers = LastServers()
        self._service = ServiceManager()
        self._resources = ExitStack()
        self._ordering = threading.Lock()
        self._has_started = False
        self._looked_s = time.monotonic()
        cores = sorted(os.sched_getaffinity(0))
        shares = core_shares(cores if settings.own_cores else [], settings.num_servers)
        self.members = [self._member(index, share or frozenset(cores)) for index, share in enumerate(shares)]
        self._front: Front | None = None
        self._routes: PlacedRoutes | None = None
        self._health: HealthPort | None = None

    def __enter__(self) -> Self:
        program = find_gateway()
        if not self._home.repository.is_dir():
            raise NotFoundError(f"there is no model repository at {self._home.repository}; make one with `hplm export`")
        settings = self._settings
        with ExitStack() as entered:
            entered.enter_context(self._folder.claimed())
            self._folder.begin()
            for line in FleetPlacement.read(self._folder.placement).unlike(settings.names):
                self._report(line)
            entered.callback(self._folder.forget)
            ports = ClaimedPorts.take([(settings.address, settings.http), (settings.address, settings.grpc)])
            entered.callback(ports.release)
            require_free_ports(settings)
            http, grpc = ports.numbers
            public = GatewaySettings(
                address=settings.address, http=http, grpc=grpc, balance=settings.balance, tls=settings.tls
            )
            log = self._folder.log("gateway")
            self._front = Front(program, public, log, settings.max_restarts, self._report)
            self._routes = PlacedRoutes(self._home, self._front, self._held, self._report)
            entered.callback(self._routes.close)
            self._health = HealthPort(HEALTH_ADDRESS, settings.health_port, self._probes(), self._orders())
            entered.callback(self._health.close)
            self._resources = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.requested = True
        for member in self.members:
            member.kill()
        self.front.stop()
        self._resources.close()

    @property
    def front(self) -> Front:
        if self._front is None:
            raise ServerStartError("the fleet was not started yet")
        return self._front

    @property
    def routes(self) -> PlacedRoutes:
        if self._routes is None:
            raise ServerStartError("the fleet was not started yet")
        return self._routes

    @property
    def health_url(self) -> str:
        if self._health is None:
            raise ServerStartError("the health port is not open")
        return self._health.url

    # --- the main thread ---

    def start(self) -> bool:
        """Start the servers and the gateway; return once all are ready, or false where it is to stop before.

        Raises:
            ServerStartError: A server, at its first start, did not come to that, or the gateway has died too often.
            GatewayFailedError: The gateway, at its first start, did not.
        """
        try:
            for member in self.members:
                member.start()
            upstreams = self._wait_for_ports()
            self.routes.refresh()
            self.front.start(upstreams, self._look)
            self.routes.start()
            self._wait_while(lambda: any(member.state is not MemberState.READY for member in self.members))
            self._wait_while(lambda: not all(map(self._is_routed, self.members)))
        except _StopRequestedError:
            return False
        self._has_started = True
        self._shown.refresh()
        self._service.ready()
        return True

    def stay(self) -> None:
        """Look after the gateway until the fleet is to stop; then drain one server after the other, and end all.

        Raises:
            ServerStartError: All servers have failed, or the gateway has died too often.
        """
        try:
            while True:
                servers = self._look().servers
                self.front.look_after(self._look)
                if (reason := self._last_servers.why_over(servers, self._ordering.locked())) is not None:
                    raise ServerStartError(reason)
                time.sleep(_LOOK_EVERY_S)
        except _StopRequestedError:
            self._service.stopping()
            self._drain_all()

    def _member(self, index: int, cores: frozenset[int]) -> Member:
        name = self._settings.names[index]
        return Member(
            name,
            partial(member_start, self._home, self._settings, index),
            member_supervision(self._settings, index),
            partial(some_hplms, self._home),
            cores,
            self._folder.log(name),
            self._report,
            self.is_unrouted,
        )

    def _held(self) -> dict[str, Roots]:
        return {member.name: member.roots for member in self.members}

    def _wait_for_ports(self) -> list[Upstream]:
        found: list[Upstream] = []

        def is_missing() -> bool:
            nonlocal found
            found = [each for each in (member.upstream() for member in self.members) if each is not None]
            return len(found) < len(self.members)

        self._wait_while(is_missing)
        return found

    def _wait_while(self, condition: Callable[[], bool]) -> None:
        limit_s = self._settings.start_limit_s
        end = time.monotonic() + limit_s
        while condition():
            self._look()
            self.front.look_after(self._look)
            for member in self.members:
                if member.failure is not None:
                    raise ServerStartError(f"{member.name} did not start: {member.failure}")
            if time.monotonic() > end:
                raise ServerStartError(f"the fleet was not ready within {limit_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def _drain_all(self) -> None:
        while not self._ordering.acquire(timeout=_LOOK_EVERY_S):  # an order gives up as soon as it can
            self._service.alive()
        for member in self.members:
            self._report(f"{member.name}: stopping")
            member.stop(partial(self._while_draining, member))
            self._shown.refresh()
        self._report("all servers have stopped")

    def _while_draining(self, member: Member) -> None:
        """Keep a gateway before the servers that still answer, as long as this one does."""

        def look() -> None:
            self._service.alive()
            if not member.is_running:
                raise _DrainedError

        self._service.alive()
        with suppress(ServerStartError, _DrainedError):
            self.front.look_after(look)

    def _tick(self) -> None:
        self._looked_s = time.monotonic()
        self._service.alive()
        if self._stop.requested:
            raise _StopRequestedError

    def _look(self) -> FleetState:
        self._tick()
        return self._shown.refresh()

    def _described(self) -> FleetState:
        return FleetState(
            pid=os.getpid(),
            host=socket.gethostname(),
            health=self.health_url,
            gateway=self.front.entry(),
            servers=[member.entry() for member in self.members],
            is_ordering=self._ordering.locked(),
            order_limit_s=self._settings.order_limit_s,
        )

    # --- the health port's threads ---

    def _probes(self) -> dict[str, Callable[[], Verdict]]:
        return {"/livez": self.is_alive, "/readyz": self.is_ready, "/startupz": self.has_started}

    def _orders(self) -> dict[str, Callable[[], Verdict]]:
        return {
            f"/{verb}/{member.name}{'/force' if is_forced else ''}": partial(order, member, is_forced)
            for verb, order in (("drain", self.drain), ("restart", self.restart))
            for member in self.members
            for is_forced in (False, True)
        }

    def is_alive(self) -> Verdict:
        silent_s = time.monotonic() - self._looked_s
        is_so = silent_s < _SILENT_S or self._stop.requested
        return Verdict(is_so, [] if is_so else [f"the fleet has done nothing for {silent_s:.0f} s"])

    def is_ready(self) -> Verdict:
        """Whether requests get answers: the gateway runs and a server is ready."""
        reason = "the gateway is not running" if self._front is None else self._front.why_not_ready()
        if reason is not None:
            return Verdict(False, [reason])
        is_so = any(member.state is MemberState.READY for member in self.members)
        return Verdict(is_so, [] if is_so else [f"{each.name} is {each.state}" for each in self.members])

    def has_started(self) -> Verdict:
        return Verdict(self._has_started, [] if self._has_started else ["the fleet is starting"])

    def drain(self, member: Member, is_forced: bool) -> Verdict:
        """Drain a server and end it; the others go on."""
        with self._one_order():
            self._require_another(member, is_forced or member.state in ENDED)
            verdict = member.stop()
            self._shown.refresh()
            return verdict

    def restart(self, member: Member, is_forced: bool) -> Verdict:
        """Drain a server, start it with what is exported and installed now, and wait until the gateway asks it."""
        with self._one_order():
            self._require_another(member, is_forced or member.state is not MemberState.READY)
            require_startable(self._home, self._settings, member.name, self._release)
            undone = [f"when it was stopped, {reason}" for reason in member.stop().reasons]
            undone += self._started(member)
            self._shown.refresh()
            return Verdict(not undone, undone)

    def _started(self, member: Member) -> list[str]:
        """Start a server that was stopped, and wait until the gateway asks it; returns what did not come to that."""
        if self._stop.requested:
            return [f"{member.name} was not started again, as the fleet is stopping"]
        member.start()
        state = member.wait_until_settled(self._settings.start_limit_s, lambda: self._stop.requested)
        if state is not MemberState.READY:
            return [f"{member.name} is {state}" + (f": {member.failure}" if member.failure else "")]
        self.routes.refresh()
        if self._waits_until(lambda: self._is_routed(member)):
            return []
        return [f"{member.name} is ready, and the gateway does not ask it yet"]

    def _waits_until(self, condition: Callable[[], bool]) -> bool:
        """Give the gateway a little time; returns whether it came to that."""
        end = time.monotonic() + _ROUTED_S
        while not (found := condition()) and time.monotonic() < end and not self._stop.requested:
            time.sleep(_LOOK_EVERY_S)
        return found

    def _one_order(self) -> ExitStack:
        """Hold what orders and the end of the fleet hold in turn.

        Raises:
            BusyError: Another order is at work.
            ConflictError: The fleet is starting or stopping.
        """
        if self._stop.requested or not self._has_started:
            raise ConflictError("the fleet is starting or stopping")
        if not self._ordering.acquire(blocking=False):
            raise BusyError("another server is being drained or started; one at a time")
        held = ExitStack()
        held.callback(self._ordering.release)
        return held

    def _require_another(self, member: Member, is_excused: bool) -> None:
        if is_excused:
            return
        others = [each for each in self.members if each is not member]
        if not any(each.state is MemberState.READY for each in others):
            is_last = member.state is MemberState.READY
            reason = "is the last server that is ready" if is_last else f"is {member.state}, and no other one is ready"
            raise ConflictError(f"{member.name} {reason}; --force drains it all the same")
        # What is ready and not asked yet answers nobody.
        if not self._waits_until(lambda: any(map(self._is_asked, others))):
            if self._stop.requested:
                raise ConflictError("the fleet is stopping")
            reason = f"asks no server but {member.name}" if self._knows_routes() else "does not answer"
            raise ConflictError(f"the gateway {reason}; --force drains {member.name} all the same")

    def _is_asked(self, member: Member) -> bool:
        return member.state is MemberState.READY and self._is_routed(member)

    def _is_routed(self, member: Member) -> bool:
        try:
            routed = self._routed(member.upstream())
        except UnavailableError:
            return False
        return bool(routed) and all(each.is_healthy for each in routed)

    def is_unrouted(self, upstream: Upstream | None) -> bool:
        """Whether the gateway sends a server nothing; one that runs and does not answer may still send."""
        try:
            return not any(each.may_be_asked for each in self._routed(upstream))
        except UnavailableError:
            return not self.front.is_running

    def _knows_routes(self) -> bool:
        return self.front.is_running and self.front.admin is not None and self.front.admin.is_ready()

    def _routed(self, upstream: Upstream | None) -> list[Routed]:
        """What the gateway says of a server's ports; nothing where there is none to ask.

        Raises:
            UnavailableError: The gateway does not answer.
        """
        if upstream is None or self.front.admin is None:
            return []
        routed = self.front.admin.routed()
        return [routed[port] for port in (upstream.http, upstream.grpc)]
