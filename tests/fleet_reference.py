"""A fleet played event by event: slow, obvious, and by another hand; its servers are those of `simulation_reference`.

Nothing is shared with the fleet's simulator but `Deal`, which a test of its own compares with the real gateway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from builder.placement.fleet.happenings import Happening, Loss
from builder.placement.fleet.maglev import Deal
from simulation_reference import ReferenceLoop, Request

RETRIED_US = 10_000


@dataclass
class ReferenceFleet:
    names: list[str]
    balance: int
    new_loop: Callable[[], ReferenceLoop]
    happenings: list[Happening]
    servers: list[ReferenceLoop] = field(default_factory=list)
    earlier: list[tuple[int, ReferenceLoop]] = field(default_factory=list)
    """Servers that others have taken the places of."""
    dead: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    again: list[tuple[int, int, Request]] = field(default_factory=list)
    final: dict[int, Request] = field(default_factory=dict)
    """The last attempt of each request."""
    retried: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    routed: list[int] = field(default_factory=list)
    arrivals: dict[int, int] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    now_us: int = -1

    def play(self, requests: list[Request], queued_us: list[int]) -> None:
        """Play requests, which arrive at the gateway, and how much later each is queued."""
        self.servers = [self.new_loop() for _ in self.names]
        self.asked = set(range(len(self.names)))
        self.routed = [0] * len(self.names)
        self.arrivals = {request.index: request.arrived_us for request in requests}
        self.delays = {one.index: at - one.arrived_us for one, at in zip(requests, queued_us, strict=True)}
        coming = sorted(requests, key=lambda request: (request.arrived_us, request.index))
        while (next_us := self._next_us(coming)) < math.inf:
            now_us = self.now_us = int(next_us)
            for happening in sorted(self.happenings, key=lambda one: one.at_us):
                self._happen(happening, now_us)
            while due := [one for one in self.again if one[0] == now_us]:
                self.again.remove(due[0])
                self._send(due[0][2], due[0][1])
            while coming and coming[0].arrived_us == now_us:
                self._send(coming.pop(0), None)
            for index, server in enumerate(self.servers):
                if index not in self.dead:
                    self._step(server, now_us)
            for _, server in self.earlier:
                self._step(server, now_us)

    def batches_of(self, index: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return those of a server, and of all that stood in its place before."""
        loops = [loop for place, loop in self.earlier if place == index] + [self.servers[index]]
        return [batch for loop in loops for batch in loop.batches]

    def _next_us(self, coming: list[Request]) -> float:
        times: list[float] = [math.inf]
        times += [request.arrived_us for request in coming[:1]]
        times += [at_us for at_us, _, _ in self.again]
        for index, server in enumerate(self.servers):
            times += server.events if index not in self.dead else []
        for _, server in self.earlier:
            times += server.events
        for one in self.happenings:
            times += [one.at_us, one.at_us + one.noticed_us, math.inf if one.back_us is None else one.back_us]
        return min(time for time in times if time > self.now_us)

    def _step(self, server: ReferenceLoop, now_us: int) -> None:
        if now_us in server.events:
            server.events[:] = [at_us for at_us in server.events if at_us != now_us]
            server.step(now_us)

    def _happen(self, one: Happening, now_us: int) -> None:
        if isinstance(one, Loss) and one.at_us == now_us:
            self.dead.add(one.server)
            server = self.servers[one.server]
            if server.running is not None:
                server.batches.pop()
            for request in sorted(self.servers[one.server].held(), key=lambda request: request.index):
                self._lose(request, one.server, now_us)
        if one.at_us + one.noticed_us == now_us:
            self.asked.discard(one.server)
        if one.back_us == now_us:
            if one.server in self.dead:
                self.servers[one.server].events.clear()
            self.earlier.append((one.server, self.servers[one.server]))
            self.servers[one.server] = self.new_loop()
            self.dead.discard(one.server)
            self.asked.add(one.server)

    def _send(self, request: Request, tried: int | None) -> None:
        self.final[request.index] = request
        now_us = request.arrived_us
        if not self.asked:
            self.lost.add(request.index)
            return
        held = [0 if index in self.dead else len(server.held()) for index, server in enumerate(self.servers)]
        deal = Deal(self.names, sorted(self.asked), self.balance)
        if tried is None:
            index = deal.server_of(request.tenant, held)
        else:
            index = deal.other_server_of(request.tenant, held, tried)
        self.routed[index] += 1
        if index in self.dead:
            self._lose(request, index, now_us)
            return
        request.arrived_us = now_us + self.delays[request.index]
        self.servers[index].add(request)

    def _lose(self, request: Request, server: int, now_us: int) -> None:
        if request.index in self.retried:
            self.lost.add(request.index)
            return
        self.retried.add(request.index)
        again_us = now_us + RETRIED_US
        later_us = again_us - self.arrivals[request.index]
        deadline_us = None if request.deadline_us is None else request.deadline_us + later_us
        anew = replace(request, arrived_us=again_us, deadline_us=deadline_us, fate=None, answered_us=None)
        self.again.append((again_us, server, anew))
