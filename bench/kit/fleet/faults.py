"""A server of the fleet dies or hangs under load: what its requests come to, and how long it is felt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench.kit.fleet.judgement import Fault, Floats
from bench.kit.fleet.real import RealFleet
from bench.kit.fleet.watching import GatewayWatch
from loadtest.errors import RunError

_BEGIN_S = 2.0
"""For the clients to have their schedule."""
FAULTS = {"loss": signal.SIGKILL, "hang": signal.SIGSTOP}


@dataclass(frozen=True)
class FaultSettings:
    """All of a load of `load` times the capacity, with one deadline."""

    before_s: float
    after_s: float
    load: float = 0.4
    deadline_ms: int = 1_000


@dataclass(frozen=True)
class Story:
    """One fault, as it is judged and drawn.

    Attributes:
        server: The one that it befell.
        ready_s: When the fleet had all its servers again, in seconds from the start of the load.
        sampled_s: When the gateway was looked at.
        sent: How many requests each server had been sent by then.
    """

    kind: str
    server: str
    fault: Fault
    rate_per_s: float
    ready_s: float
    sampled_s: Floats
    sent: Mapping[str, Floats]

    def row(self) -> dict[str, object]:
        requests = self.fault.requests
        return {
            "part": self.kind,
            "requests": len(requests),
            "requests a second": self.rate_per_s,
            "failed": self.fault.num_failed,
            "on time before": self.fault.before,
            "on time for good after s": self.fault.recovery_s,
            "on time since": self.fault.since,
            "all servers again after s": self.ready_s - self.fault.at_s,
            "most failed by": next((reason for reason, _ in self.fault.failures.most_common(1)), None),
            "most not answered by": next((reason for reason, _ in self.fault.unanswered.most_common(1)), None),
        }


def befall(real: RealFleet, kind: str, settings: FaultSettings) -> Story:
    """Kill or stop the process of the server that was asked most, in the middle of a load."""
    rate_per_s = settings.load * real.capacity_per_s()
    duration_s = settings.before_s + settings.after_s
    rows = real.planned(rate_per_s, duration_s, lambda: settings.deadline_ms, real.hplms)
    starts_at = time.monotonic() + _BEGIN_S
    with GatewayWatch(real.fleet, starts_at) as watch:
        playing = real.clients.begin(real.fleet.grpc_url, rows, starts_at)
        time.sleep(max(0.0, starts_at + settings.before_s - time.monotonic()))
        victim = _busiest(watch)
        pid = real.fleet.server(victim).pid
        at_s = time.monotonic() - starts_at
        if pid is None:
            raise RunError(f"{victim} has no process to befall with {kind}: it is being restarted")
        os.kill(pid, FAULTS[kind])
        time.sleep(_BEGIN_S)  # until then the fleet may not have noticed
        real.fleet.wait_ready()
        ready_s = time.monotonic() - starts_at
        played = playing.result()
    sampled_s, sent = watch.counts()
    return Story(kind, victim, Fault(played.requests, at_s), rate_per_s, ready_s, sampled_s, sent)


def _busiest(watch: GatewayWatch) -> str:
    _, sent = watch.counts()
    return max(sent, key=lambda name: float(sent[name][-1] - sent[name][0]) if len(sent[name]) else 0.0)
