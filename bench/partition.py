"""What do those who ask notice of a registry that is away, silent, slow, or restored from an hour ago?

Real Triton, registries in SQLite and in PostgreSQL, the latter behind a proxy that stands for a bad network. Of each
fault two turns are played, one without and one with it, under the same load: rows of live hPLMs at `load` of what the
server bears, all of which must be answered (`live_failed`). Beside them callers ask `probes_per_s` times a second for
an hPLM that does not exist, which `hplm_lower` rejects as it takes it in: their times are the intake's.
`partition_p99_ratio` is the 99th percentile of all turns with a fault over that of all without.

After each fault a version is published, and asked for until all answers are of it (`fresh_s_max`); the restored
registry knows an earlier version, which must be served again.
"""

from __future__ import annotations

import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from backends.errors import HplmError
from backends.registry.registry import Registry
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.marks import publish_marked
from bench.kit.partition.registries import RESTORED, FailingRegistry, postgres_registry, sqlite_registry
from bench.kit.progress import one_by_one
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.stock_client import ClientProcess, Replies, Sending, send_on_time
from bench.kit.synthetic_home import SMALL, TenantHome, tenant_home
from builder.serving import TritonServer
from hplm_client import ClientError, HplmClient

_TOKENS = 24
_IN_FLIGHT = 64
_EDGE_ROWS = 64
_ABSENT = "nobody/none"
_NOT_FOUND = "StatusCode.NOT_FOUND"
_ASK_EVERY_S = 0.01
REGISTRIES: Mapping[str, Callable[[], AbstractContextManager[FailingRegistry]]] = {
    "sqlite": sqlite_registry,
    "postgresql": postgres_registry,
}


@dataclass(frozen=True)
class Settings:
    rounds: int
    turn_s: float
    fresh_s: float
    warm_rows: int
    load: float = 0.4
    probes_per_s: float = 100.0
    tenants: int = 64


FULL = Settings(rounds=3, turn_s=15.0, fresh_s=4.0, warm_rows=2_000)
QUICK = Settings(rounds=1, turn_s=3.0, fresh_s=3.0, warm_rows=400)


@dataclass(frozen=True)
class Turn:
    """What callers of live hPLMs and callers of an absent one were told."""

    live: Replies
    absent: Replies

    @property
    def failed(self) -> int:
        return int((self.live.status != "").sum()) + self.live.unanswered

    def require_all_absent(self) -> None:
        if self.absent.unanswered or (self.absent.status != _NOT_FOUND).any():
            raise HplmError(f"callers of an hPLM that does not exist were told: {dict(self.absent.messages)}")

    @property
    def intake_ms(self) -> Any:
        return 1e3 * (self.absent.done_s - self.absent.sent_s)


@dataclass(frozen=True)
class Fault:
    """A fault of one registry, the two turns, and how long the server went on with what it knew after it."""

    registry: str
    name: str
    without: Turn
    under: Turn
    fresh_s: float

    def row(self) -> dict[str, Any]:
        return {
            "registry": self.registry,
            "fault": self.name,
            "answers": len(self.without.live.status) + len(self.under.live.status),
            "failed": self.without.failed + self.under.failed,
            "intake p99 ms, without": _p99(self.without.intake_ms),
            "intake p99 ms, with": _p99(self.under.intake_ms),
            "answers p99 ms, without": _p99(_answers_ms(self.without)),
            "answers p99 ms, with": _p99(_answers_ms(self.under)),
            "fresh after s": self.fresh_s,
        }


@dataclass(frozen=True)
class Partitioned:
    """A running server on a home whose registry fails, and the rate at which it is asked."""

    home: TenantHome
    server: TritonServer
    registry: FailingRegistry
    rate: float


class Seen:
    """The versions in which one hPLM answers, asked all the time by two callers."""

    def __init__(self, url: str, hplm: str, text: str) -> None:
        self._client = HplmClient(f"grpc://{url}", retries=0)
        self._asked = hplm, text
        self._versions: list[tuple[float, int]] = []
        self._failed: list[ClientError] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._client.close()
        if self._failed:
            raise HplmError(f"{len(self._failed)} requests of a live hPLM failed: {self._failed[0]}")

    def last_other_s(self, version: int) -> float:
        """When the last request was sent that another version answered, on the monotonic clock."""
        return max((sent_s for sent_s, answered in self._versions if answered != version), default=0.0)

    @property
    def last_version(self) -> int:
        return self._versions[-1][1]

    def _ask(self) -> None:
        while not self._stopping.wait(_ASK_EVERY_S):
            sent_s = time.monotonic()
            try:
                answer = self._client.infer(*self._asked)
            except ClientError as error:
                self._failed.append(error)
            else:
                self._versions.append((sent_s, answer.version))


def measure(settings: Settings, registries: Sequence[str], seed: int) -> list[Fault]:
    rng = np.random.default_rng(seed)
    faults = []
    for name in registries:
        with REGISTRIES[name]() as registry, _partitioned(settings, registry, rng, seed) as partitioned:
            plan = [fault for _ in range(settings.rounds) for fault in registry.faults]
            for number, fault in enumerate(one_by_one(plan, "partition", name)):
                faults.append(_suffered(settings, partitioned, name, fault, number % 2 == 0, rng))
    return faults


@contextmanager
def _partitioned(
    settings: Settings, registry: FailingRegistry, rng: np.random.Generator, seed: int
) -> Iterator[Partitioned]:
    with tenant_home(SMALL, settings.tenants, (_TOKENS,), seed) as home:
        serving = Serving("partitioned", lower_instances=2, environment=registry.environment)
        with served(home.home, serving) as server:
            warm = [draw(home.hplms, home.texts[_TOKENS], settings.warm_rows, rng) for _ in range(2)]
            played = [saturate(server.grpc_url, rows, _IN_FLIGHT).rows_per_s(_EDGE_ROWS) for rows in warm]
            yield Partitioned(home, server, registry, settings.load * played[-1])


def _suffered(
    settings: Settings,
    partitioned: Partitioned,
    registry: str,
    fault: str,
    begins_whole: bool,
    rng: np.random.Generator,
) -> Fault:
    home, hplm = partitioned.home.home, partitioned.home.hplms[0]
    earlier = _publish(partitioned, hplm)
    partitioned.registry.save(home)
    if fault == RESTORED:
        _publish(partitioned, hplm)
    seen = Seen(partitioned.server.grpc_url, hplm, partitioned.home.texts[_TOKENS][0])
    time.sleep(settings.fresh_s)  # so that all turns begin alike
    turns: dict[bool, Turn] = {}
    fresh_s = 0.0
    try:
        if begins_whole:
            turns[False] = _played(settings, partitioned, rng)
        partitioned.registry.begin(fault, home)
        begun_s = time.monotonic()
        turns[True] = _played(settings, partitioned, rng)
        if fault == RESTORED:
            fresh_s = _age_s(seen, earlier, begun_s)
        else:
            partitioned.registry.end(home)
            ended_s = time.monotonic()
            version = _publish(partitioned, hplm)
            time.sleep(settings.fresh_s)
            fresh_s = _age_s(seen, version, ended_s)
        if not begins_whole:
            turns[False] = _played(settings, partitioned, rng)
    finally:
        seen.close()
    for turn in turns.values():
        turn.require_all_absent()
    return Fault(registry, fault, turns[False], turns[True], fresh_s)


def _age_s(seen: Seen, version: int, since_s: float) -> float:
    """How long after a moment another version than this one still answered."""
    if seen.last_version != version:
        raise HplmError(f"version {seen.last_version} answers, where version {version} is live")
    return max(0.0, seen.last_other_s(version) - since_s)


def _publish(partitioned: Partitioned, hplm: str) -> int:
    """Publish a version as an operator does whose connection is good."""
    registry = Registry.open(partitioned.home.home)
    try:
        entry = registry.hplm(hplm)
        return publish_marked(partitioned.home.home, registry, hplm, entry, entry.domain).version
    finally:
        registry.close()


def _played(settings: Settings, partitioned: Partitioned, rng: np.random.Generator) -> Turn:
    home, url = partitioned.home, partitioned.server.grpc_url
    at_s = _moments_s(partitioned.rate, settings.turn_s, rng)
    rows = draw(home.hplms, home.texts[_TOKENS], len(at_s), rng)
    live = [Sending(float(at), hplm, (text,)) for at, (hplm, text) in zip(at_s, rows, strict=True)]
    moments_s = _moments_s(settings.probes_per_s, settings.turn_s, rng)
    absent = [Sending(float(at), _ABSENT, (home.texts[_TOKENS][0],)) for at in moments_s]
    with ClientProcess(send_on_time, url, live) as asking, ClientProcess(send_on_time, url, absent) as probing:
        asking.start()
        probing.start()
        return Turn(asking.replies(), probing.replies())


def _moments_s(per_s: float, span_s: float, rng: np.random.Generator) -> Any:
    return np.sort(rng.uniform(0, span_s, round(per_s * span_s)))


def _answers_ms(turn: Turn) -> Any:
    return 1e3 * (turn.live.done_s - turn.live.sent_s)


def _p99(values: Any) -> float:
    return float(np.quantile(values, 0.99))


def figures_of(faults: Sequence[Fault]) -> dict[str, float]:
    def ratio(of_turn: Callable[[Turn], Any]) -> float:
        under = np.concatenate([of_turn(fault.under) for fault in faults])
        return _p99(under) / _p99(np.concatenate([of_turn(fault.without) for fault in faults]))

    return {
        "live_failed": float(sum(fault.without.failed + fault.under.failed for fault in faults)),
        "partition_p99_ratio": ratio(lambda turn: turn.intake_ms),
        "answers_p99_ratio": ratio(_answers_ms),
        "fresh_s_max": max(fault.fresh_s for fault in faults),
    }


def _add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--only", nargs="+", choices=REGISTRIES, metavar="REGISTRY", help=f"of {', '.join(REGISTRIES)}; all"
    )


@bench(
    "partition",
    quick_s=QUICK_LOADS_S,
    add_options=_add_options,
    bars={"live_failed": at_most(0), "partition_p99_ratio": at_most(1.1), "fresh_s_max": at_most(2)},
)
def partition(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    faults = measure(settings, options.only or list(REGISTRIES), options.seed)
    return Result(asdict(settings), figures_of(faults), [fault.row() for fault in faults])


if __name__ == "__main__":
    partition.main()
