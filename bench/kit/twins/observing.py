"""Loads on running servers, with the moments at which requests really left."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.errors import UnavailableError
from backends.scheduling.tenants import tenant_of
from bench.kit.fates import Fate, Fates
from bench.kit.overload import OverloadHome
from bench.kit.twins.ground import Ground
from builder.placement import SimulatedLoad
from hplm_client import ConnectionFailedError, ConnectionLostError, HplmClient, RequestCancelledError
from loadtest.in_process import Played, play_async
from loadtest.outcome import Kind
from loadtest.schedule import Schedule
from loadtest.sender import OpenAsk, Target, open_sdk

_ALONE = 20
_ALONE_TOKENS = 20
_LEAD_S = 0.2
_BROKEN = (ConnectionLostError.code, ConnectionFailedError.code, RequestCancelledError.code)
_MOST_BROKEN = 0.01
_PATIENCE_S = 60.0
"""For the last answers, which come within the longest deadline and a second."""


@dataclass(frozen=True, eq=False)
class Observed:
    """A load that was played.

    Attributes:
        began_us: Its start on the machine's monotonic clock.
        num_left_out: How often the gateway left a server out meanwhile, as one that is too busy to answer its watchdog;
            no simulated one is.
    """

    played: Played
    began_us: float
    num_left_out: int = 0

    @property
    def attainment(self) -> float:
        """The share of requests whose answers left the server in time, whatever a busy client did with them."""
        return Fates(self.played).share(Fate.ON_TIME, Fate.OVERTAKEN)

    @property
    def sent_us(self) -> NDArray[np.float64]:
        """When requests left, ascending, on the machine's monotonic clock."""
        requests = self.played.requests
        return np.sort(self.began_us + 1e6 * requests.sent_s[~self._unsent])

    def replayed(self, hplms: Sequence[str], reach_us: float = 0.0) -> SimulatedLoad:
        """Return what was sent, when it was sent; deadlines count from when a server sees a request."""
        requests, is_sent = self.played.requests, ~self._unsent
        sent_us = (1e6 * requests.sent_s[is_sent]).astype(np.int64)
        left_ms = np.floor(requests.deadline_ms[is_sent] - 1e3 * (requests.sent_s - requests.scheduled_s)[is_sent])
        deadlines_us = sent_us + round(reach_us) + (1e3 * left_ms).astype(np.int64)
        numbers = {hplm: number for number, hplm in enumerate(hplms)}
        tenants = np.array([numbers[hplm] for hplm in requests.hplms[is_sent].tolist()], np.int64)
        names = tuple(map(tenant_of, hplms))
        duration_s = float(requests.sent_s.max(initial=0.0))
        return SimulatedLoad.in_order(
            duration_s, sent_us, sent_us, requests.tokens[is_sent], tenants, deadlines_us, names
        )

    @property
    def _unsent(self) -> NDArray[np.bool_]:
        return np.equal(self.played.requests.kinds, str(Kind.UNSENT))


def observe(ground: Ground, schedule: Schedule) -> Observed:
    """Play a load, and wait until nothing of it is left.

    Raises:
        UnavailableError: It does not come to an end, or connections broke, as no simulated server's do.
    """
    left_out_before, starts_at = ground.num_left_out(), time.monotonic() + _LEAD_S
    played = asyncio.run(play_in_time(Target(ground.url), schedule, starts_at))
    require_connected(played)
    ground.wait_until_idle()
    return Observed(played, 1e6 * starts_at, ground.num_left_out() - left_out_before)


async def play_in_time(
    target: Target,
    schedule: Schedule,
    starts_at: float,
    patience_s: float = _PATIENCE_S,
    open_ask: OpenAsk = open_sdk,
) -> Played:
    """Play a load whose requests all end soon after their deadlines.

    Raises:
        UnavailableError: Some do not.
    """
    longest_ms = 0 if schedule.deadlines_ms is None else int(schedule.deadlines_ms.max(initial=0))
    ends_in_s = schedule.end_s + longest_ms / 1e3 + patience_s
    try:
        async with asyncio.timeout(starts_at - time.monotonic() + ends_in_s):
            return await play_async(target, schedule, open_ask=open_ask, starts_at=starts_at)
    except TimeoutError:
        raise UnavailableError(f"{target.url}: a load was not over {ends_in_s:.0f} s after its begin") from None


def require_connected(played: Played) -> None:
    """Raise UnavailableError if more than a hundredth of the requests met a broken connection."""
    broken = Counter(reason for reason in played.requests.reasons.tolist() if reason.startswith(_BROKEN))
    if broken.total() > _MOST_BROKEN * len(played.requests):
        (reason, _), *_ = broken.most_common(1)
        raise UnavailableError(
            f"{broken.total():,} of {len(played.requests):,} requests of a load met a broken connection: {reason}"
        )


@dataclass(frozen=True)
class Alone:
    """Requests one after the other on idle servers: when each was sent, and what it took."""

    sent_us: Sequence[float]
    took_us: float


def ask_alone(ground: Ground, home: OverloadHome) -> Alone:
    sent_us, took_us = [], []
    with HplmClient(ground.url) as client:
        for number in range(_ALONE):
            sent_us.append(1e6 * time.monotonic())
            client.infer(home.hplms[number % len(home.hplms)], home.texts[_ALONE_TOKENS])
            took_us.append(1e6 * time.monotonic() - sent_us[-1])
    return Alone(sent_us, statistics.median(took_us))
