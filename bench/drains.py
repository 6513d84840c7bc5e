"""Does a drain under 70 % load answer all that was accepted, and is the server back within ten seconds?

`hplm serve`, the real command, is drained again and again: by SIGTERM, and in every second drain by `POST /drain` with
SIGTERM after it. Meanwhile one kind of the SDK's clients asks, over gRPC and HTTP, synchronously and with asyncio in
turn, without retries, in a process of its own, at a share of what the same callers were answered without pauses. They
go on asking while the server is stopped and started again. A request is failed if it may have been accepted and got no
answer: it was sent before readiness went down and rejected, or before the models rejected everything new and then lost.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from statistics import median
from typing import Any, NamedTuple

from backends.draining import draining_sign
from backends.errors import UnavailableError
from bench.kit.drains.clients import ANSWERED, KINDS, Callers, Ended
from bench.kit.drains.judgement import Drain
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.progress import one_by_one
from bench.kit.served import Serving
from bench.kit.supervised import SupervisedServer, supervised
from bench.kit.synthetic_home import SMALL, TenantHome, tenant_home
from bench.kit.until_stopped import UntilStopped

_SIGTERM, _POST = "SIGTERM", "POST /drain, SIGTERM"
_LOOK_S = 0.01
_DRAINED_S = 60.0
_AGAIN_S = 60.0
_RESUMED_S = 1.0
_SHOWN_FAILURES = 3


@dataclass(frozen=True)
class Settings:
    drains: int
    before_s: float
    capacity_s: float
    tenants: int = 100
    geometry: str = "small, 6 of 12 x 256 above PLOT"
    load: float = 0.7
    callers: int = 16
    lengths: tuple[int, ...] = (10, 30, 60, 100)


FULL = Settings(drains=20, before_s=3.0, capacity_s=8.0)
QUICK = Settings(drains=2, before_s=1.0, capacity_s=2.0, tenants=20)


class Planned(NamedTuple):
    """The client that asks, and how the drain is ordered."""

    client: str
    order: str

    def __str__(self) -> str:
        return f"{self.client}, {self.order}"


def plan(count: int) -> list[Planned]:
    """Kinds of clients in turn, and in every second drain, of each kind too, the other order."""
    kinds, orders = list(KINDS), (_SIGTERM, _POST)
    return [Planned(kinds[number % len(kinds)], orders[(number + number // len(kinds)) % 2]) for number in range(count)]


@dataclass(frozen=True)
class Drained:
    """One drain, the requests around it, and how the server came back."""

    planned: Planned
    rate_per_s: float
    drain: Drain
    exit_code: int
    restart_ready_s: float
    requests: Sequence[Ended]

    @property
    def counts(self) -> Counter[str]:
        return self.drain.counts(self.requests)

    @property
    def open_at_order(self) -> int:
        """Requests under way when the order to drain came."""
        return sum(one.sent_s < self.drain.ordered_s <= one.ended_s for one in self.requests)

    def row(self) -> dict[str, Any]:
        counts, drain = self.counts, self.drain
        return {
            "client": self.planned.client,
            "order": self.planned.order,
            "requests a second": self.rate_per_s,
            "open at the order": self.open_at_order,
            **{name: counts[name] for name in ("answered", "answered draining", "rejected", "refused", "cut")},
            "failed": counts["failed"],
            "answered again": counts["answered again"],
            "unready after s": drain.unready_s - drain.ordered_s,
            "ended after s": drain.ended_s - drain.ordered_s,
            "ready again after s": self.restart_ready_s,
            "exit code": self.exit_code,
        }

    def failures(self) -> list[str]:
        return [
            f"{self.planned}: sent {one.sent_s - self.drain.ordered_s:+.3f} s after the order, ended "
            f"{one.ended_s - self.drain.ordered_s:+.3f} s: {one.error}: {one.message}"
            for one in self.requests
            if self.drain.outcome(one) == "failed"
        ]


class Watch:
    """Notes on a thread when `/readyz` first says no, and when the models begin to reject new requests."""

    def __init__(self, server: SupervisedServer) -> None:
        self._server, self._sign = server, draining_sign(server.run_folder())
        self._unready_s = self._closed_s = math.inf
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def moments(self) -> tuple[float, float]:
        """Call it when the server has ended."""
        self._ended.set()
        self._thread.join()
        return self._unready_s, self._closed_s

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S) and self._closed_s == math.inf:
            if self._unready_s == math.inf and not self._server.is_ready():
                self._unready_s = time.monotonic()
            if self._sign.exists():
                self._closed_s = time.monotonic()


class Drains:
    """Drains one server again and again, each time under the load of another kind of client."""

    def __init__(self, server: SupervisedServer, tenants: TenantHome, settings: Settings, seed: int) -> None:
        self._server, self._settings = server, settings
        urls = {"grpc": server.grpc_url, "http": server.http_url}
        texts = [text for of_length in tenants.texts.values() for text in of_length]
        self._callers = {
            kind: Callers(kind, urls, tenants.hplms, texts, settings.callers, seed + number)
            for number, kind in enumerate(KINDS)
        }
        self._rates: dict[str, float] = {}

    def drain(self, planned: Planned) -> Drained:
        server, kind = self._server, planned.client
        rate_per_s = self._rate_per_s(kind)
        with UntilStopped(replace(self._callers[kind], rate_per_s=rate_per_s).play) as load:
            load.next_told()
            time.sleep(self._settings.before_s)
            watch = Watch(server)
            ordered_s = time.monotonic()
            if planned.order == _POST:
                self._order()
            exit_code = server.stop(_DRAINED_S)
            ended_s = time.monotonic()
            drain = Drain(ordered_s, *watch.moments(), ended_s)
            server.start()
            server.wait_ready(_AGAIN_S)
            restart_ready_s = time.monotonic() - server.started_s
            time.sleep(_RESUMED_S)
            load.stop()
            requests = load.next_told()
        return Drained(planned, rate_per_s, drain, exit_code, restart_ready_s, requests)

    def _order(self) -> None:
        status, told = self._server.ask_health("/drain", "POST", _DRAINED_S)
        if status != HTTPStatus.OK:
            raise UnavailableError(f"POST /drain was answered {status}: {told}")

    def _rate_per_s(self, kind: str) -> float:
        """The share of what these callers are answered without pauses, which is measured once."""
        if kind not in self._rates:
            with UntilStopped(self._callers[kind].play) as load:
                began_s = load.next_told() + self._settings.before_s
                time.sleep(self._settings.before_s + self._settings.capacity_s)
                load.stop()
                requests: list[Ended] = load.next_told()
            ends_s = began_s + self._settings.capacity_s
            answered = sum(one.error == ANSWERED and began_s <= one.ended_s < ends_s for one in requests)
            self._rates[kind] = self._settings.load * answered / self._settings.capacity_s
        return self._rates[kind]


def figures(drained: Sequence[Drained]) -> dict[str, float]:
    counts = sum((one.counts for one in drained), Counter[str]())
    restarts_s = [one.restart_ready_s for one in drained]
    ends_s = [one.drain.ended_s - one.drain.ordered_s for one in drained]
    return {
        "drains": float(len(drained)),
        "drain_failed": float(counts["failed"]),
        "drain_rejected": float(counts["rejected"]),
        "drain_refused": float(counts["refused"]),
        "drain_cut": float(counts["cut"]),
        "open_at_order": float(sum(one.open_at_order for one in drained)),
        "answered_draining": float(counts["answered draining"]),
        "answered": float(counts["answered"] + counts["answered draining"]),
        "bad_exits": float(sum(one.exit_code != 0 for one in drained)),
        "unready_s_max": max(one.drain.unready_s - one.drain.ordered_s for one in drained),
        "drain_s_p50": median(ends_s),
        "drain_s_max": max(ends_s),
        "restart_ready_s_p50": median(restarts_s),
        "restart_ready_s_max": max(restarts_s),
    }


@bench(
    "drains",
    bars={"drain_failed": at_most(0), "bad_exits": at_most(0), "restart_ready_s_max": at_most(10)},
    quick_s=QUICK_LOADS_S,
)
def drains(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    drained = []
    with (
        tenant_home(SMALL, settings.tenants, settings.lengths, options.seed) as tenants,
        supervised(tenants.home, Serving(lower_instances=2, lower={})) as server,
    ):
        work = Drains(server, tenants, settings, options.seed)
        for planned in one_by_one(plan(settings.drains), "drains", "draining"):
            drained.append(work.drain(planned))
            for failure in drained[-1].failures()[:_SHOWN_FAILURES]:
                print(f"failed: {failure}", file=sys.stderr)
    return Result(asdict(settings), figures(drained), [one.row() for one in drained])


if __name__ == "__main__":
    drains.main()
