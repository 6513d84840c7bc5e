"""One tenant asks for far more than its share: what the others lose by it.

As in `bench.fairness`: a share is what a tenant gets of all that is answered on time while one of them asks for that
much, since its clients and its rejections take a part of the processor from everybody.

Each server shares its rows among the tenants that it meets. So the others may lose although each server is fair: where
the gateway deals more of them to one server than to another, and since a tenant that both servers meet has a share of
each. How many each server is dealt is said beside.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backends.scheduling.tenants import tenant_of
from bench.kit.fleet.real import SERVERS, RealFleet
from builder.placement.fleet.maglev import Deal
from loadtest.in_process import Played
from loadtest.requests import Requests
from loadtest.schedule import Row

_BEGIN_S = 1.0
_REST_S = 5.0
"""For requests that clients have given up to be computed."""
_BATCH = 64
_DEADLINES_IN_BATCHES = (5, 20)
_MOST_LOST = 0.9


@dataclass(frozen=True)
class HotSettings:
    """A load lasts as long as so many full batches of both servers; deadlines are 5 to 20 of them."""

    duration_batches: int
    repeats: int
    others: int = 20
    times_its_share: int = 50


@dataclass(frozen=True)
class Hot:
    """The same requests of the others, alone and beside the hot tenant."""

    alone: Played
    beside: Played
    hot: str
    share_per_s: float
    dealt: Mapping[str, int]
    """How many of the others each server has as long as none of them holds too many."""

    @property
    def others_beside(self) -> float:
        requests = self.beside.requests
        return float(requests.in_time[requests.hplms != self.hot].mean())

    @property
    def others_unanswered(self) -> Counter[str]:
        """Why requests of the others got no answer beside the hot tenant."""
        requests = self.beside.requests
        reasons = requests.reasons[requests.hplms != self.hot].tolist()
        return Counter(reason.partition(":")[2].strip() for reason in reasons if reason)

    def _worst_tenants(self) -> int:
        """The number of others that lose more than a tenth of their requests."""
        requests = self.beside.requests
        others = {*requests.hplms.tolist()} - {self.hot}
        return sum(bool(requests.in_time[requests.hplms == hplm].mean() < _MOST_LOST) for hplm in others)

    @property
    def points(self) -> float:
        return 100 * (self.alone.attainment - self.others_beside)

    def row(self) -> dict[str, object]:
        requests = self.beside.requests
        return {
            "part": "hot",
            "requests": len(requests),
            "a share, rows a second": self.share_per_s,
            "others by server": " ".join(f"{name}: {count}" for name, count in self.dealt.items()),
            "others alone": self.alone.attainment,
            "others beside": self.others_beside,
            "points lost": self.points,
            "the hot one": float(requests.in_time[requests.hplms == self.hot].mean()),
            "others lost by": next((reason for reason, _ in self.others_unanswered.most_common(1)), None),
            "late or unanswered tenants": self._worst_tenants(),
        }


def answered_per_s(requests: Requests, duration_s: float) -> float:
    """Return the answers on time a second of a load; those that come after its last request would not fit its time."""
    return float((requests.in_time & (requests.done_s <= duration_s)).sum()) / duration_s


def dealt(hplms: Sequence[str], servers: Sequence[str]) -> Mapping[str, int]:
    """Count the hPLMs that the gateway deals to each server by their tenants, where it keeps no bound on load."""
    deal = Deal(servers, range(len(servers)), balance=0)
    counts = Counter(deal.server_of(tenant_of(hplm), [0] * len(servers)) for hplm in hplms)
    return {name: counts[index] for index, name in enumerate(servers)}


class HotTenant:
    """Loads of some tenants, of which the last asks for more than its share."""

    def __init__(self, real: RealFleet, settings: HotSettings) -> None:
        self._real, self._settings = real, settings
        self._hplms = real.hplms[: settings.others + 1]
        batch_s = _BATCH * SERVERS / real.capacity_per_s()
        self._duration_s = settings.duration_batches * batch_s
        self._deadlines_ms = [max(1, round(1e3 * count * batch_s)) for count in _DEADLINES_IN_BATCHES]

    def outcomes(self) -> list[Hot]:
        per_s = self._answered_per_s()
        share_per_s = per_s / len(self._hplms)
        found = []
        for repeat in range(self._settings.repeats):
            others = self._others(share_per_s)
            plans = {"alone": others, "beside": self._with_hot(others, share_per_s)}
            order = list(plans) if repeat % 2 == 0 else list(plans)[::-1]
            played = {way: self._play(plans[way]) for way in order}
            found.append(Hot(played["alone"], played["beside"], self._hplms[-1], share_per_s, self._dealt()))
        return found

    def _dealt(self) -> Mapping[str, int]:
        return dealt(self._hplms[:-1], [each.server for each in self._real.fleet.servers()])

    def _answered_per_s(self) -> float:
        """Answers on time a second during such an overload."""
        share_per_s = self._real.capacity_per_s() / len(self._hplms)
        played = self._play(self._with_hot(self._others(share_per_s), share_per_s))
        return answered_per_s(played.requests, self._duration_s)

    def _others(self, share_per_s: float) -> list[Row]:
        return self._planned(self._hplms[:-1], self._settings.others * share_per_s)

    def _with_hot(self, others: Sequence[Row], share_per_s: float) -> list[Row]:
        return [*others, *self._planned(self._hplms[-1:], self._settings.times_its_share * share_per_s)]

    def _planned(self, hplms: Sequence[str], rate_per_s: float) -> list[Row]:
        shortest, longest = self._deadlines_ms
        rng = self._real.rng
        return self._real.planned(rate_per_s, self._duration_s, lambda: int(rng.integers(shortest, longest + 1)), hplms)

    def _play(self, rows: Sequence[Row]) -> Played:
        played = self._real.clients.begin(self._real.fleet.grpc_url, rows, time.monotonic() + _BEGIN_S).result()
        time.sleep(_REST_S)
        return played
