"""What does a tenant that floods the server cost the others?

Twenty tenants ask for their share of what the server answers, open-loop, with deadlines in 5 to 20 times what a full
batch takes; then the very same requests again, beside one tenant that asks for 50 times its share. A share is a
twenty-first of what is answered in time while the flood is there: the clients of the flood and its refusals take a part
of the processor from everybody. What is answered is counted in words, because the requests of the others are of all
lengths, while some policies answer more of a flood by taking the short ones out of it. Beside it the same with shares
of what is answered when nobody floods.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from backends.errors import HplmError
from backends.root.geometry import RootGeometry
from backends.scheduling.settings import PolicyName
from bench.kit.idle import wait_until_idle
from bench.kit.open_loop import Planned, Played, play
from bench.kit.profiled import profiled
from bench.kit.progress import one_by_one
from bench.kit.report import Report, parser
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving
from bench.kit.synthetic_home import BERT_BASE, SMALL, BaseHome, Family, Words
from builder.serving import TritonServer
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths

_ROOT = "base"
_LENGTHS = NormalLengths(standard_deviation=20)
FLOODED, QUIET = "while flooded", "without a flood"


@dataclass(frozen=True)
class Settings:
    policies: tuple[str, ...]
    duration_batches: int
    longest_s: float
    repeats: int
    profiled_batches: int
    others: int = 20
    times_its_share: int = 50
    batch: int = 64
    max_tokens: int = 2048
    warm_batches: int = 12
    capacity_batches: int = 24
    deadline_batches: tuple[int, int] = (5, 20)
    texts: int = 512
    dtype: str = "bf16"

    @property
    def upper(self) -> dict[str, str]:
        return {"dtype": self.dtype, "max_rows": str(self.batch), "max_tokens": str(self.max_tokens)}


FULL = Settings(
    policies=(PolicyName.FCFS, PolicyName.DAS), duration_batches=60, longest_s=30.0, repeats=3, profiled_batches=160
)
QUICK = replace(FULL, policies=(PolicyName.FCFS,), longest_s=2.0, repeats=1, profiled_batches=40)


@dataclass(frozen=True)
class Outcome:
    """What became of the same requests of the others, alone and beside the flood, and of the flood."""

    policy: str
    share_of: str
    share_per_s: float
    alone: Played
    beside: Played
    is_flood: Sequence[bool]
    """Of each request of `beside`."""

    @property
    def others_alone(self) -> float:
        return self.alone.attainment

    @property
    def others_beside(self) -> float:
        return _answered([not flood for flood in self.is_flood], self.beside)

    @property
    def flood(self) -> float:
        return _answered(self.is_flood, self.beside)

    @property
    def fall_points(self) -> float:
        return 100 * (self.others_alone - self.others_beside)


def _answered(chosen: Sequence[bool], played: Played) -> float:
    """The client refuses what came too late, so whatever was answered was in time."""
    return float(np.mean([sent.error is None for sent, is_it in zip(played.sent, chosen, strict=True) if is_it]))


class Bench:
    """The loads of one home, and the server for one policy."""

    def __init__(self, base: BaseHome, geometry: RootGeometry, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._rng = np.random.default_rng(seed)
        words = Words(geometry.vocab_size)
        self._texts = [words.text(self._rng, length) for length in _LENGTHS.draw(settings.texts, self._rng).tolist()]
        base.add_root(_ROOT, geometry, self._texts)
        self._hplms = base.add_hplms(Family(_ROOT, "tenant", settings.others + 1))

    def outcomes(self, policy: str, server: TritonServer) -> list[Outcome]:
        settings = self._settings
        for batches in (settings.warm_batches, settings.capacity_batches):
            rows = draw(self._hplms, self._texts, batches * settings.batch, self._rng)
            quiet_per_s = saturate(server.grpc_url, rows, 3 * settings.batch, settings.batch).rows_per_s
        flooded_per_s = self._answered_while_flooded_per_s(server, quiet_per_s)
        found = []
        for repeat in one_by_one(range(settings.repeats), "fairness", policy):
            for name, per_s in ((FLOODED, flooded_per_s), (QUIET, quiet_per_s)):
                share_per_s = per_s / (settings.others + 1)
                others, flood = self._others(share_per_s, per_s), self._flood(share_per_s, per_s)
                both = sorted([(one, False) for one in others] + [(one, True) for one in flood], key=_when)
                plans = {"alone": others, "beside": [one for one, _ in both]}
                order = list(plans) if repeat % 2 == 0 else list(plans)[::-1]
                played = {way: self._play(server, plans[way]) for way in order}
                is_flood = [is_flood for _, is_flood in both]
                found.append(Outcome(policy, name, share_per_s, played["alone"], played["beside"], is_flood))
        return found

    def _answered_while_flooded_per_s(self, server: TritonServer, quiet_per_s: float) -> float:
        share_per_s = quiet_per_s / (self._settings.others + 1)
        plan = [*self._others(share_per_s, quiet_per_s), *self._flood(share_per_s, quiet_per_s)]
        plan.sort(key=lambda one: one.at_s)
        played = self._play(server, plan)
        words = [len(one.text.split()) for one in plan]
        answered = sum(count for count, sent in zip(words, played.sent, strict=True) if sent.error is None)
        return answered / float(np.mean(words)) / self._duration_s(quiet_per_s)

    def _play(self, server: TritonServer, plan: Sequence[Planned]) -> Played:
        played = play(server.grpc_url, plan)
        wait_until_idle(server)
        return played

    def _others(self, share_per_s: float, capacity_per_s: float) -> list[Planned]:
        return self._planned(self._hplms[:-1], self._settings.others * share_per_s, capacity_per_s)

    def _flood(self, share_per_s: float, capacity_per_s: float) -> list[Planned]:
        return self._planned(self._hplms[-1:], self._settings.times_its_share * share_per_s, capacity_per_s)

    def _planned(self, hplms: Sequence[str], rate_per_s: float, capacity_per_s: float) -> list[Planned]:
        duration_s = self._duration_s(capacity_per_s)
        at_s = PoissonArrivals(rate_per_s).times_s(duration_s, self._rng).tolist()
        batch_ms = 1e3 * self._settings.batch / capacity_per_s
        shortest_ms, longest_ms = (max(1, round(count * batch_ms)) for count in self._settings.deadline_batches)
        deadlines_ms = UniformDeadlines(shortest_ms, longest_ms).draw_ms(len(at_s), self._rng).tolist()
        rows = draw(hplms, self._texts, len(at_s), self._rng)
        return [Planned(at, *row, deadline) for at, row, deadline in zip(at_s, rows, deadlines_ms, strict=True)]

    def _duration_s(self, capacity_per_s: float) -> float:
        settings = self._settings
        return min(settings.duration_batches * settings.batch / capacity_per_s, settings.longest_s)


def _when(request: tuple[Planned, bool]) -> float:
    return request[0].at_s


def measure(folder: Path, geometry: RootGeometry, settings: Settings, seed: int) -> list[Outcome]:
    base = BaseHome(folder / "home", seed)
    bench = Bench(base, geometry, settings, seed)
    profiled(base.home, _ROOT, settings.upper, settings.profiled_batches)
    found: list[Outcome] = []
    for policy in settings.policies:
        serving = Serving(f"by_{policy}", upper={**settings.upper, "policy": policy})
        with ExitStack() as stack:
            server = TritonServer(serving.config(base.home))
            stack.callback(server.stop)
            server.start()
            server.wait_ready()
            found += bench.outcomes(policy, server)
    return found


def table(found: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "policy": one.policy,
            "shares of what is answered": one.share_of,
            "a share, rows per s": one.share_per_s,
            "requests": len(one.beside.sent),
            "others alone": one.others_alone,
            "others beside the flood": one.others_beside,
            "points fallen": one.fall_points,
            "the flood": one.flood,
            "clients' share of CPU": one.beside.client_cores / (os.cpu_count() or 1),
        }
        for one in found
    ]


def figures(found: Sequence[Outcome]) -> Mapping[str, float]:
    def fallen(share_of: str, policy: str) -> float:
        return median(one.fall_points for one in found if (one.share_of, one.policy) == (share_of, policy))

    policies = list(dict.fromkeys(one.policy for one in found))
    by_policy = {f"others_fall_points_{policy}": fallen(FLOODED, policy) for policy in policies}
    of_quiet = {f"others_fall_points_quiet_shares_{policy}": fallen(QUIET, policy) for policy in policies}
    return {"others_fall_points": max(by_policy.values()), **by_policy, **of_quiet}


def main() -> None:
    options = parser("fairness", "What does a tenant that floods the server cost the others?").parse_args()
    settings = QUICK if options.quick else FULL
    geometry = SMALL if options.quick else BERT_BASE
    with tempfile.TemporaryDirectory(prefix="bench_fairness_") as folder:
        found = measure(Path(folder), geometry, settings, options.seed)
    described = {name: value for name, value in asdict(settings).items() if not isinstance(value, tuple)}
    Report("fairness", described, options.seed, figures(found), table(found)).publish(options.json)


if __name__ == "__main__":
    try:
        main()
    except HplmError as error:
        sys.exit(f"bench.fairness: {error}")
