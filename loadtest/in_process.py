"""Loads played by this process alone, for benches and calibration.

Usage:
    schedule = Schedule.of([Row(0.0, "acme/returns", "It broke.", deadline_ms=50), …])
    played = play(Target("localhost:8001"), schedule)                     # open loop, by the rows' times
    played.attainment                                                     # share answered by the planned deadline
    played.requests.in_time, .latency_s, .lag_s, .kinds, .reasons         # columns in the order of the rows
    played.lag_p99_ms, played.client_cores                                # what the client itself was late by, and took

    played = play(Target(url), Schedule.of(rows), in_flight=128)          # closed loop, each row once
    played = play(Target(url), Schedule.of(rows), 128, duration_s=6.0)    # the rows over and over for 6 s
    played.require_all_answered()
    played.rows_per_s(edge_rows=64)

Another client than the SDK (another model, Triton's own priorities) is an `open_ask`:
    @asynccontextmanager
    async def open_other(target: Target) -> AsyncIterator[Ask]: ...
    play(Target(url), schedule, open_ask=open_other)

Inside a running event loop `await play_async(…)` takes the same arguments.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from loadtest.errors import RunError
from loadtest.outcome import Kind, Outcome, is_overtaken
from loadtest.requests import Requests
from loadtest.schedule import Schedule
from loadtest.sender import Effort, OpenAsk, Sender, Target, open_sdk


@dataclass(frozen=True, eq=False)
class Played:
    """All requests of a load, in the order of its rows. In a closed loop each was planned for when it was sent."""

    requests: Requests
    effort: Effort

    @property
    def attainment(self) -> float:
        """The share of all requests that were answered by their planned deadlines."""
        return float(self.requests.in_time.mean())

    @property
    def client_cores(self) -> float:
        """The number of cores that this process kept busy."""
        return self.effort.cpu_s / self.effort.wall_s

    @property
    def lag_p99_ms(self) -> float:
        """The lateness of sending. A client that is later than a batch takes has measured itself."""
        return 1e3 * float(np.percentile(self.requests.lag_s, 99))

    @property
    def overtaken(self) -> int:
        """Answers that left the server in time and whose deadlines passed before they arrived."""
        return sum(is_overtaken(reason) for reason in self.requests.reasons.tolist())

    @property
    def unsent(self) -> int:
        """Requests that were not sent because nothing was left of their deadlines."""
        return int((self.requests.kinds == Kind.UNSENT).sum())

    @property
    def reasons(self) -> Counter[str]:
        """The reasons why requests were not answered."""
        return Counter(reason for reason in self.requests.reasons.tolist() if reason)

    def latency_ms(self, percent: float) -> float:
        """A percentile over answered requests, from their planned times; NaN if none was answered."""
        answered_s = self.requests.latency_s[self.requests.answered]
        return 1e3 * float(np.percentile(answered_s, percent)) if len(answered_s) else float("nan")

    def rows_per_s(self, edge_rows: int) -> float:
        """The rate of answers, without `edge_rows` at either end, while the server fills and drains."""
        times_s = np.sort(self.requests.done_s[self.requests.answered])
        if edge_rows < 1 or len(times_s) <= 2 * edge_rows:
            raise ValueError(f"{len(times_s)} answers are too few for edges of {edge_rows}")
        return float((len(times_s) - 2 * edge_rows) / (times_s[-edge_rows - 1] - times_s[edge_rows - 1]))

    def require_all_answered(self) -> None:
        """Raise RunError if a request was not answered."""
        if reasons := self.reasons:
            (reason, _), *_ = reasons.most_common(1)
            count = reasons.total()
            raise RunError(f"{count:,} of {len(self.requests):,} requests were not answered, most often: {reason}")

    def require_none_failed(self) -> None:
        """Raise RunError if a request was neither answered nor rejected nor too late to be sent."""
        failed = self.requests.reasons[np.equal(self.requests.kinds, str(Kind.FAILED))].tolist()
        if failed:
            raise RunError(f"{len(failed):,} of {len(self.requests):,} requests failed, the first by: {failed[0]}")


def play(
    target: Target,
    schedule: Schedule,
    in_flight: int | None = None,
    duration_s: float | None = None,
    open_ask: OpenAsk = open_sdk,
    starts_at: float | None = None,
) -> Played:
    """Play a schedule and wait for all outcomes; `Sender` says what the arguments mean."""
    return asyncio.run(play_async(target, schedule, in_flight, duration_s, open_ask, starts_at))


async def play_async(
    target: Target,
    schedule: Schedule,
    in_flight: int | None = None,
    duration_s: float | None = None,
    open_ask: OpenAsk = open_sdk,
    starts_at: float | None = None,
) -> Played:
    outcomes: list[Outcome] = []
    async with open_ask(target) as ask:
        effort = await Sender(schedule, outcomes.append, in_flight, duration_s).play(ask, starts_at)
    requests = Requests.of(schedule, outcomes)
    if in_flight is not None:
        requests = replace(requests, scheduled_s=requests.sent_s)
    return Played(requests, effort)
