"""Servers that are drained, restarted, and given another export under a load that must lose nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.kit.drains.clients import ANSWERED, Callers, Ended
from bench.kit.fleet.real import RealFleet
from bench.kit.served import Serving
from bench.kit.until_stopped import UntilStopped
from builder.fleet.control import server_rows

_KINDS = ("asyncio gRPC", "asyncio HTTP")
_REST_S = 1.0
DRAIN, ROLLING, UPGRADE = "drain", "rolling", "upgrade"
"""The last is of the export, as after an upgrade of the program: `hplm fleet apply` does the same for both."""


@dataclass(frozen=True)
class RollingSettings:
    """At least so many requests in all, without deadlines, over both protocols."""

    requests: int
    load: float = 0.4
    callers: int = 64


@dataclass(frozen=True)
class Operation:
    """One drain, restart or upgrade; times of the machine's monotonic clock."""

    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Rolled:
    """All requests, and what was done to the fleet meanwhile."""

    requests: Sequence[Ended]
    operations: Sequence[Operation]
    rate_per_s: float

    def of(self, kind: str) -> list[Ended]:
        """Requests that were under way, or sent, during operations of a kind."""
        spans = [(each.begin_s, each.end_s) for each in self.operations if each.kind == kind]
        return [one for one in self.requests if any(one.sent_s < end and one.ended_s >= begin for begin, end in spans)]

    def row(self, kind: str) -> dict[str, object]:
        found, spans = self.of(kind), [each for each in self.operations if each.kind == kind]
        reasons = Counter(f"{one.error}: {one.message}" for one in found if one.error != ANSWERED)
        return {
            "part": kind,
            "requests": len(found),
            "requests a second": self.rate_per_s,
            "failed": reasons.total(),
            "operations": len(spans),
            "seconds each": sum(each.end_s - each.begin_s for each in spans) / max(1, len(spans)),
            "first error": next(iter(reasons), None),
        }


def num_failed(requests: Sequence[Ended]) -> int:
    """Count requests without an answer, whatever the reason."""
    return sum(one.error != ANSWERED for one in requests)


def roll(real: RealFleet, settings: RollingSettings, seed: int) -> Rolled:
    """Drain, restart and upgrade in turns, until there were enough requests."""
    rate_per_s = settings.load * real.capacity_per_s()
    urls = {"grpc": real.fleet.grpc_url, "http": real.fleet.http_url}
    texts = real.home.texts[real.settings.tokens]
    share = rate_per_s / len(_KINDS)
    operations: list[Operation] = []
    requests: list[Ended] = []
    with ExitStack() as stack:
        loads = [
            stack.enter_context(
                UntilStopped(
                    Callers(kind, urls, real.hplms, texts, settings.callers, seed + number, rate_per_s=share).play
                )
            )
            for number, kind in enumerate(_KINDS)
        ]
        for load in loads:
            load.next_told()
        before = _num_sent(real)
        time.sleep(_REST_S)
        for operation in _operations(real):
            operations.append(operation)
            time.sleep(_REST_S)
            for load in loads:
                load.told()  # one that has ended ends the bench
            if operation.kind == UPGRADE and _num_sent(real) - before >= settings.requests:
                break
        for load in loads:
            load.stop()
        for load in loads:
            requests += load.next_told()
    return Rolled(requests, operations, rate_per_s)


def _operations(real: RealFleet) -> Iterator[Operation]:
    """Each server drained and started again, then a rolling restart, then a rolling upgrade; again and again."""
    policies = ("edf", "fcfs")
    number = 0
    while True:
        name = real.fleet.servers()[number % real.fleet.num_servers].server
        yield _done(real, DRAIN, "drain", name, "--restart")
        yield _done(real, ROLLING, "apply", "--restart")
        upper = {"dtype": real.settings.dtype, "threads": "1", "policy": policies[number % len(policies)]}
        Serving(upper=upper).config(real.home.home)  # another export in the place of the old one
        yield _done(real, UPGRADE, "apply")
        number += 1


def _num_sent(real: RealFleet) -> int:
    """Count the requests that the gateway has sent on."""
    return sum(row["requests"] or 0 for row in server_rows(real.fleet.state))


def _done(real: RealFleet, kind: str, *order: str) -> Operation:
    begin_s = time.monotonic()
    real.fleet.order(*order)
    return Operation(kind, begin_s, time.monotonic())
