"""What does a tenant that overloads the server cost the others?

Twenty tenants ask for their share of what the server answers, open-loop, with deadlines in 5 to 20 times what a full
batch takes; then the very same requests again, beside one tenant that asks for 50 times its share. A share is a
twenty-first of what is answered on time during the overload: the clients of that tenant and its rejections take a part
of the processor from everybody. What is answered is counted in words, because the requests of the others are of all
lengths, while some policies answer more of the overload by taking its short ones. Beside it the same with shares of
what is answered without overload (`others_fall_points_quiet_shares_*`).
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from backends.scheduling.settings import PolicyName
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.idle import wait_until_idle
from bench.kit.overload import WIDE, Engine, OverloadHome, overload_home
from bench.kit.progress import one_by_one
from bench.kit.served import Serving, all_served
from bench.kit.synthetic_home import BERT_BASE, MIDDLE
from builder.serving import TritonServer
from loadtest.in_process import Played, play
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target

OVERLOADED, QUIET = "during overload", "without overload"


@dataclass(frozen=True)
class Settings:
    geometry: str
    policies: tuple[str, ...]
    duration_batches: int
    repeats: int
    profiled_batches: int
    engine: Engine = field(default_factory=Engine)
    longest_s: float = 30.0
    others: int = 20
    times_its_share: int = 50
    capacity_batches: int = 24


FULL = Settings(
    "BERT-base, 6 of 12 x 768 above PLOT",
    policies=(PolicyName.FCFS, PolicyName.DAS),
    duration_batches=60,
    repeats=3,
    profiled_batches=160,
)
QUICK = Settings(
    "middle, 6 of 12 x 512 above PLOT",
    policies=(PolicyName.FCFS, PolicyName.DAS),
    duration_batches=40,
    repeats=1,
    profiled_batches=40,
    engine=Engine(batch=32, max_tokens=1024),
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The same requests of the others, alone and beside the overload, and the requests of the overload."""

    policy: str
    share_of: str
    share_per_s: float
    alone: Played
    beside: Played
    overloading: str
    """The tenant's hPLM."""

    @property
    def others_beside(self) -> float:
        requests = self.beside.requests
        return float(requests.in_time[requests.hplms != self.overloading].mean())

    @property
    def overload(self) -> float:
        requests = self.beside.requests
        return float(requests.in_time[requests.hplms == self.overloading].mean())

    @property
    def fall_points(self) -> float:
        return 100 * (self.alone.attainment - self.others_beside)


class Fairness:
    """The loads of one home; the last of its tenants is the one that overloads the server."""

    def __init__(self, home: OverloadHome, settings: Settings, seed: int) -> None:
        self._home, self._settings = home, settings
        self._rng = np.random.default_rng(seed)

    def outcomes(self, policy: str, server: TritonServer) -> list[Outcome]:
        settings, rng = self._settings, self._rng
        self._home.warm(server, rng)
        quiet_per_s = self._home.capacity_per_s(server, WIDE, settings.capacity_batches, rng)
        rates = {OVERLOADED: self._answered_during_overload_per_s(server, quiet_per_s), QUIET: quiet_per_s}
        results = []
        for repeat in one_by_one(range(settings.repeats), "fairness", policy):
            for name, per_s in rates.items():
                share_per_s = per_s / (settings.others + 1)
                others, overload = self._others(share_per_s, per_s), self._overload(share_per_s, per_s)
                plans = {"alone": others, "beside": [*others, *overload]}
                order = list(plans) if repeat % 2 == 0 else list(plans)[::-1]
                played = {way: self._play(server, plans[way]) for way in order}
                results.append(
                    Outcome(policy, name, share_per_s, played["alone"], played["beside"], self._home.hplms[-1])
                )
        return results

    def _answered_during_overload_per_s(self, server: TritonServer, quiet_per_s: float) -> float:
        """Mean requests per second by the words of those that were answered on time."""
        share_per_s = quiet_per_s / (self._settings.others + 1)
        plan = [*self._others(share_per_s, quiet_per_s), *self._overload(share_per_s, quiet_per_s)]
        requests = self._play(server, plan).requests
        words = requests.tokens - 2
        return float(words[requests.in_time].sum() / words.mean()) / self._duration_s(quiet_per_s)

    def _play(self, server: TritonServer, plan: Sequence[Row]) -> Played:
        played = play(Target(server.grpc_url), Schedule.of(plan))
        wait_until_idle(server)
        return played

    def _others(self, share_per_s: float, capacity_per_s: float) -> list[Row]:
        return self._planned(self._home.hplms[:-1], self._settings.others * share_per_s, capacity_per_s)

    def _overload(self, share_per_s: float, capacity_per_s: float) -> list[Row]:
        return self._planned(self._home.hplms[-1:], self._settings.times_its_share * share_per_s, capacity_per_s)

    def _planned(self, hplms: Sequence[str], rate_per_s: float, capacity_per_s: float) -> list[Row]:
        duration_s = self._duration_s(capacity_per_s)
        return self._home.plan(WIDE, rate_per_s, capacity_per_s, duration_s, self._rng, hplms)

    def _duration_s(self, capacity_per_s: float) -> float:
        settings = self._settings
        return min(settings.duration_batches * settings.engine.batch / capacity_per_s, settings.longest_s)


def measure(home: OverloadHome, settings: Settings, seed: int) -> list[Outcome]:
    fairness = Fairness(home, settings, seed)
    results: list[Outcome] = []
    for policy in settings.policies:
        serving = Serving(f"by_{policy}", upper={**settings.engine.parameters, "policy": policy})
        with all_served(home.home, {policy: serving}) as servers:
            results += fairness.outcomes(policy, servers[policy])
    return results


def table(results: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "policy": one.policy,
            "shares of what is answered": one.share_of,
            "a share, rows per s": one.share_per_s,
            "requests": len(one.beside.requests),
            "others alone": one.alone.attainment,
            "others beside the overload": one.others_beside,
            "points fallen": one.fall_points,
            "the overload": one.overload,
            "clients' share of CPU": one.beside.client_cores / (os.cpu_count() or 1),
        }
        for one in results
    ]


def figures(results: Sequence[Outcome]) -> dict[str, float]:
    def fallen(share_of: str, policy: str) -> float:
        return median(one.fall_points for one in results if (one.share_of, one.policy) == (share_of, policy))

    policies = list(dict.fromkeys(one.policy for one in results))
    by_policy = {f"others_fall_points_{policy}": fallen(OVERLOADED, policy) for policy in policies}
    of_quiet = {f"others_fall_points_quiet_shares_{policy}": fallen(QUIET, policy) for policy in policies}
    return {"others_fall_points": max(by_policy.values()), **by_policy, **of_quiet}


@bench("fairness", quick_s=QUICK_LOADS_S, bars={"others_fall_points": at_most(2)})
def fairness(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    geometry = MIDDLE if options.quick else BERT_BASE
    tenants, profiled_batches = settings.others + 1, settings.profiled_batches
    with overload_home(geometry, settings.engine, tenants, profiled_batches, options.seed) as home:
        results = measure(home, settings, options.seed)
    return Result(asdict(settings), figures(results), table(results))


if __name__ == "__main__":
    fairness.main()
