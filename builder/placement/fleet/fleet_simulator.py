"""Several servers behind a gateway in virtual time.

A request goes to the server that Envoy would ask: by its tenant, unless that server holds too many. So all servers go
on together: before a request is dealt, each has played all that happens before that moment. At one moment first servers
are lost, drained or back, then requests that were lost before come again, then new ones, then the servers go on.

Usage:
    fleet = FleetSimulator({"server-1": Simulator(…), "server-2": Simulator(…)}, balance=125)
    fleet.run(load, [Loss(server=0, at_us=30_000_000)]).figures()
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np

from backends.errors import InvalidArgumentError
from builder.placement.fleet.fleet_simulation import FleetSimulation
from builder.placement.fleet.happenings import Happening, Loss
from builder.placement.fleet.maglev import Deal
from builder.placement.server_run import ServerRun
from builder.placement.simulated_job import SimulatedJob
from builder.placement.simulated_load import SimulatedLoad
from builder.placement.simulation_log import SimulationLog
from builder.placement.simulator import Simulator
from builder.progress import Report, Step

BALANCE = 125
_RETRIED_US = 10_000
"""Envoy waits 5 to 20 ms before it asks another server."""


class FleetSimulator:
    """A fleet; its servers may be of any kinds, but all have students or none.

    Args:
        servers: By their names, which the gateway deals tenants by; none has exits, or stages.
        balance: See `Deal`.
        shares_host: Whether all servers, and what sends requests, share the cores of one host.

    Raises:
        InvalidArgumentError: There is no server, the balance cannot be, or a server has exits or stages.
    """

    def __init__(self, servers: Mapping[str, Simulator], balance: int = BALANCE, shares_host: bool = False) -> None:
        if not servers:
            raise InvalidArgumentError("a fleet has one server at least")
        if balance != 0 and balance < 100:
            raise InvalidArgumentError(f"a balance of {balance} % cannot be kept: give 100 or more, or 0 for none")
        if not all(server.may_be_of_fleet for server in servers.values()):
            raise InvalidArgumentError("servers of a simulated fleet have no ladders and no stages")
        self._servers = servers
        self._balance = balance
        self._shares_host = shares_host

    def run(
        self, load: SimulatedLoad, happenings: Sequence[Happening] = (), report: Report = lambda _: None
    ) -> FleetSimulation:
        """Play a load to its last answer.

        Raises:
                InvalidArgumentError: Something happens to a server that is not there, or is out already.
        """
        _check(happenings, len(self._servers))
        load = next(iter(self._servers.values())).as_met(load.by_arrival())
        return _FleetRun(self._servers, self._balance, self._shares_host, load, happenings).play(report)


class _FleetRun:
    """One load on its way through a fleet."""

    def __init__(
        self,
        servers: Mapping[str, Simulator],
        balance: int,
        shares_host: bool,
        load: SimulatedLoad,
        happenings: Sequence[Happening],
    ) -> None:
        self._simulators = list(servers.values())
        self._names = list(servers)
        self._balance = balance
        self._load = load
        self._arrived_us = load.arrived_us.tolist()
        self._delays_us = (load.queued_us - load.arrived_us).tolist()
        self._offered: list[list[int]] = [[]] * len(servers) if shares_host else [[] for _ in servers]
        self._runs = [self._new_run(index) for index in range(len(servers))]
        self._logs = [[run.log] for run in self._runs]
        self._wakes_us = [run.wakes_us for run in self._runs]
        self._open = [0] * len(servers)
        """Requests that each server holds, as they are known until the moments of the next list."""
        self._open_until_us: list[float] = [math.inf] * len(servers)
        self._routed = [0] * len(servers)
        self._dead: set[int] = set()
        self._asked = set(range(len(servers)))
        self._deal = self._new_deal()
        self._numbers = count()
        self._again: list[tuple[int, int, int, SimulatedJob]] = []
        """Requests that come again: when, in which order, and which server has lost them."""
        self._retried: set[int] = set()
        self._lost: list[int] = []
        self._turns = deque(sorted(self._turns_of(happenings), key=lambda turn: turn.at_us))

    def play(self, report: Report) -> FleetSimulation:
        duration_s = round(self._load.duration_s)
        intake = self._simulators[0].intake(self._load.undelayed())
        while jobs := intake.take_block():
            for job in jobs:
                self._go_on_until(job.arrived_us)
                self._send(job)
            report(Step("simulate", min(jobs[-1].arrived_us // 1_000_000, max(0, duration_s - 1)), duration_s))
        self._go_on_until(math.inf)
        report(Step("simulate", duration_s, duration_s))
        return self._result()

    # --- time ---

    def _go_on_until(self, now_us: float) -> None:
        """Play all that happens before the requests of a moment come."""
        while self._turns or self._again:
            turn_us = self._turns[0].at_us if self._turns else math.inf
            again_us = self._again[0][0] if self._again else math.inf
            if min(turn_us, again_us) > now_us:
                break
            if turn_us <= again_us:
                self._advance(turn_us)
                self._turns.popleft().take()
            else:
                self._advance(again_us)
                _, _, tried, job = heapq.heappop(self._again)
                self._send(job, tried)
        self._advance(now_us)

    def _advance(self, until_us: float) -> None:
        if min(self._wakes_us) >= until_us:
            return
        for index, wakes_us in enumerate(self._wakes_us):
            if wakes_us < until_us:
                self._runs[index].advance(until_us)
                self._note_changed(index)

    # --- requests ---

    def _send(self, job: SimulatedJob, tried: int | None = None) -> None:
        now_us = job.arrived_us
        if self._deal is None:
            self._lost.append(job.place)
            return
        num_open = self._num_open(now_us)
        if tried is None:
            index = self._deal.server_of(job.tenant, num_open)
        else:
            index = self._deal.other_server_of(job.tenant, num_open, tried)
        self._routed[index] += 1
        self._offered[index].append(now_us)
        if index in self._dead:
            self._retry(job, index, now_us)
            return
        job.arrived_us = now_us + self._delays_us[job.place]
        self._runs[index].add(job)
        self._note_changed(index)

    def _num_open(self, now_us: int) -> Sequence[int]:
        """Return how many requests each server holds; counted anew only where that may have changed."""
        if self._balance:
            for index, until_us in enumerate(self._open_until_us):
                if until_us < now_us:
                    run = self._runs[index]
                    self._open[index], self._open_until_us[index] = run.num_open(now_us), run.open_until_us
        return self._open

    def _note_changed(self, index: int) -> None:
        """Know that a server has gone on, or got a request, or is another one."""
        self._wakes_us[index] = self._runs[index].wakes_us
        self._open_until_us[index] = -math.inf

    def _retry(self, job: SimulatedJob, tried: int, now_us: int) -> None:
        """Have a request come again, if it has not yet; its deadline then begins anew, as no server knows better."""
        if job.place in self._retried:
            self._lost.append(job.place)
            return
        self._retried.add(job.place)
        again_us = now_us + _RETRIED_US
        anew = self._simulators[tried].anew(job, again_us, again_us - self._arrived_us[job.place])
        heapq.heappush(self._again, (again_us, next(self._numbers), tried, anew))

    # --- servers ---

    def _turns_of(self, happenings: Sequence[Happening]) -> Iterator[_Turn]:
        """Yield them in the order in which they come at one moment: a server is back before it is lost again."""
        for one in sorted(happenings, key=lambda one: one.at_us):
            if isinstance(one, Loss):
                yield _Turn(one.at_us, partial(self._lose, one.server, one.at_us))
            yield _Turn(one.at_us + one.noticed_us, partial(self._leave_out, one.server))
            if one.back_us is not None:
                yield _Turn(one.back_us, partial(self._take_back, one.server))

    def _lose(self, index: int, now_us: int) -> None:
        self._dead.add(index)
        for job in self._runs[index].kill(now_us):
            self._retry(job, index, now_us)
        self._note_changed(index)

    def _leave_out(self, index: int) -> None:
        self._asked.discard(index)
        self._deal = self._new_deal()

    def _take_back(self, index: int) -> None:
        """Start another server in the place of one that is dead, or has nothing more to do once it has finished."""
        self._runs[index].advance(math.inf)
        self._runs[index] = self._new_run(index)
        self._logs[index].append(self._runs[index].log)
        self._note_changed(index)
        self._dead.discard(index)
        self._asked.add(index)
        self._deal = self._new_deal()

    def _new_run(self, index: int) -> ServerRun:
        return self._simulators[index].watched_run(self._offered[index])

    def _new_deal(self) -> Deal | None:
        return Deal(self._names, sorted(self._asked), self._balance) if self._asked else None

    def _result(self) -> FleetSimulation:
        logs = [_merged(of_server) for of_server in self._logs]
        return FleetSimulation(
            _merged(logs).judged(self._load, self._lost),
            {name: log.batches() for name, log in zip(self._names, logs, strict=True)},
            dict(zip(self._names, self._routed, strict=True)),
            np.array(sorted(self._lost), np.int64),
            len(self._retried),
        )


@dataclass(frozen=True)
class _Turn:
    """Something that happens to a server."""

    at_us: int
    take: Callable[[], None]


def _merged(logs: Sequence[SimulationLog]) -> SimulationLog:
    merged = SimulationLog()
    for log in logs:
        merged.extend(log)
    return merged


def _check(happenings: Sequence[Happening], num_servers: int) -> None:
    by_server: dict[int, list[Happening]] = {}
    for one in sorted(happenings, key=lambda one: one.at_us):
        if one.server >= num_servers:
            raise InvalidArgumentError(f"the fleet has {num_servers} servers; there is no number {one.server + 1}")
        before = by_server.setdefault(one.server, [])
        if before and (before[-1].back_us is None or before[-1].back_us > one.at_us):
            raise InvalidArgumentError(f"server {one.server + 1} is out already at {one.at_us / 1e6:g} s")
        before.append(one)
