"""The four scenarios; each draws its whole schedule before the first request is sent.

steady    every hPLM asks once in 20 s, from a random moment on
burst     250 users, one more every 0.05 s; each asks 50 times, every 1.2 s
overload  any arrival process, at a rate or at a multiple of what the server can do
trace     the requests of a recorded trace
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadtest.labelled import LabelledText, LabelledTexts
from loadtest.schedule import Schedule
from loadtest.texts import Texts, tokens_of
from workload.arrivals import Arrivals, TraceArrivals
from workload.checks import check_positive
from workload.deadlines import UniformDeadlines
from workload.errors import WorkloadError
from workload.lengths import Lengths, TraceLengths
from workload.tenants import Tenants, TraceTenants
from workload.traces import Trace

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Content:
    """The content of requests.

    Attributes:
        hplms: Those that are asked.
        texts: Texts of hPLMs that have no labelled ones.
        lengths: Their lengths.
        deadlines: Of all requests.
        pairs: hPLMs that read two segments.
        labelled: Texts of which the right label is known; their lengths are their own.
        level: Level of their ladders that all requests ask for; None leaves that to the server.
    """

    hplms: tuple[str, ...]
    texts: Texts
    lengths: Lengths
    deadlines: UniformDeadlines | None = None
    pairs: frozenset[str] = frozenset()
    labelled: LabelledTexts | None = None
    level: str | None = None

    def __post_init__(self) -> None:
        if not self.hplms:
            raise WorkloadError("a load needs at least one hPLM")
        for hplm in self.labelled.of_hplm if self.labelled else ():
            if hplm not in self.hplms:
                raise WorkloadError(f"--labelled: {hplm} is not among the hPLMs of this load")

    def schedule(
        self, times_s: NDArray[np.float64], hplm_of: Column, rng: np.random.Generator, tokens: Column | None = None
    ) -> Schedule:
        """Draw text and deadline of each row."""
        if not len(times_s):
            raise WorkloadError("this load has no request; make it longer or its rate higher")
        drawn = self.texts.of_lengths(self.lengths.draw(len(times_s), rng) if tokens is None else tokens, rng)
        deadlines_ms = None if self.deadlines is None else self.deadlines.draw_ms(len(times_s), rng)
        schedule = Schedule(
            times_s,
            hplm_of,
            drawn.text_of,
            drawn.tokens,
            deadlines_ms,
            self.hplms,
            drawn.texts,
            self.pairs,
            levels=(self.level,),
        )
        return schedule if self.labelled is None else self._with_labels(schedule, self.labelled, rng)

    def _with_labels(self, schedule: Schedule, labelled: LabelledTexts, rng: np.random.Generator) -> Schedule:
        """Give rows of hPLMs with labelled texts one of these."""
        index_of: dict[LabelledText, int] = {}
        text_of, tokens = schedule.text_of.copy(), schedule.tokens.copy()
        for hplm in labelled.of_hplm:
            rows = np.flatnonzero(schedule.hplm_of == self.hplms.index(hplm))
            drawn = labelled.draw(hplm, len(rows), rng)
            text_of[rows] = [len(schedule.texts) + index_of.setdefault(one, len(index_of)) for one in drawn]
            tokens[rows] = [tokens_of(one.text) for one in drawn]
        texts = (*schedule.texts, *(one.text for one in index_of))
        labels = (*(None for _ in schedule.texts), *(one.label for one in index_of))
        return replace(schedule, text_of=text_of, tokens=tokens, texts=texts, labels=labels)


class Scenario(ABC):
    """Base of the four."""

    @abstractmethod
    def schedule(self, content: Content, rng: np.random.Generator) -> Schedule:
        """Draw the requests of one run."""


@dataclass(frozen=True)
class Steady(Scenario):
    """Every hPLM at a constant rate, each from a random moment on."""

    duration_s: float = 60.0
    every_s: float = 20.0

    def __post_init__(self) -> None:
        check_positive(duration_s=self.duration_s, every_s=self.every_s)

    def schedule(self, content: Content, rng: np.random.Generator) -> Schedule:
        first_s = rng.random(len(content.hplms)) * self.every_s
        return content.schedule(*_repeated(first_s, self.every_s, self.duration_s), rng)


@dataclass(frozen=True)
class Burst(Scenario):
    """Users that begin one after the other; each keeps its hPLM. Without a duration all users finish."""

    tenants: Callable[[int], Tenants]
    users: int = 250
    spawn_s: float = 0.05
    every_s: float = 1.2
    requests: int = 50
    duration_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(users=self.users, spawn_s=self.spawn_s, every_s=self.every_s, requests=self.requests)
        if self.duration_s is not None:
            check_positive(duration_s=self.duration_s)

    def schedule(self, content: Content, rng: np.random.Generator) -> Schedule:
        first_s = np.arange(self.users) * self.spawn_s
        times_s = (first_s[:, None] + np.arange(self.requests) * self.every_s).reshape(-1)
        user_of = np.repeat(np.arange(self.users), self.requests)
        order = np.argsort(times_s, kind="stable")
        if self.duration_s is not None:
            order = order[times_s[order] < self.duration_s]
        hplm_of_user = self.tenants(len(content.hplms)).draw(self.users, rng)
        return content.schedule(times_s[order], hplm_of_user[user_of[order]], rng)


@dataclass(frozen=True)
class Overload(Scenario):
    """Requests of one arrival process."""

    arrivals: Arrivals
    tenants: Callable[[int], Tenants]
    duration_s: float = 30.0

    def __post_init__(self) -> None:
        check_positive(duration_s=self.duration_s)

    def schedule(self, content: Content, rng: np.random.Generator) -> Schedule:
        times_s = self.arrivals.times_s(self.duration_s, rng)
        return content.schedule(times_s, self.tenants(len(content.hplms)).draw(len(times_s), rng), rng)


@dataclass(frozen=True, eq=False)
class Replay(Scenario):
    """A trace with its times, and with its tenants, lengths, deadlines and levels if it has them.

    Deadlines and a level that are given go before those of the trace. A trace tenant that is the ID of an hPLM asks
    that hPLM, for the level of the trace. The others are assigned hPLMs in the order in which they first appear,
    starting over if there are more tenants than hPLMs; as these may have other levels, the server chooses theirs.
    """

    trace: Trace
    tenants: Callable[[int], Tenants]
    speed: float = 1.0
    rate_scale: float = 1.0
    duration_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(speed=self.speed, rate_scale=self.rate_scale)
        if self.duration_s is not None:
            check_positive(duration_s=self.duration_s)

    def schedule(self, content: Content, rng: np.random.Generator) -> Schedule:
        trace = self.trace
        arrivals = TraceArrivals(trace.times_s, self.speed, self.rate_scale)
        # The last request of a trace comes at its very end, so a replay of all of it goes on a little beyond.
        whole_s = float(np.nextafter(trace.duration_s / self.speed, np.inf))
        times_s, requests = arrivals.replay(whole_s if self.duration_s is None else self.duration_s, rng)
        if trace.tenants is None:
            hplm_of = self.tenants(len(content.hplms)).draw(len(requests), rng)
        else:
            of_tenant = _hplms_of(trace.tenant_names, content.hplms)
            hplm_of = of_tenant[TraceTenants(trace.tenants).of(requests)]
        tokens = None if trace.tokens is None else TraceLengths(trace.tokens).of(requests)
        schedule = content.schedule(times_s, hplm_of, rng, tokens)
        if trace.deadlines_ms is not None and content.deadlines is None:
            schedule = replace(schedule, deadlines_ms=_whole_ms(trace.deadlines_ms[requests]))
        return schedule if content.level is not None else _with_levels(schedule, trace, requests)


def _whole_ms(deadlines_ms: NDArray[np.float64]) -> Column:
    """Round deadlines of a trace to a millisecond at least; those of rows without one become 0. Shape: [rows]."""
    return np.nan_to_num(np.maximum(np.rint(deadlines_ms), 1), nan=0).astype(np.int64)


def _with_levels(schedule: Schedule, trace: Trace, requests: Column) -> Schedule:
    """Give rows the levels of the trace's requests, of which `requests` are the indices; see `Replay`."""
    if trace.tenants is None or trace.levels is None:
        return schedule
    is_hplm = np.isin(np.array(trace.tenant_names), np.array(schedule.hplms))
    level_of = np.where(is_hplm[trace.tenants[requests]], trace.levels[requests] + 1, 0)
    return replace(schedule, levels=(None, *(name or None for name in trace.level_names)), level_of=level_of)


def _hplms_of(tenant_names: Sequence[str], hplms: Sequence[str]) -> Column:
    """Assign an hPLM to each trace tenant, as indices. Shape: [tenants of the trace]."""
    index_of = {hplm: index for index, hplm in enumerate(hplms)}
    return np.array([index_of.get(name, number % len(hplms)) for number, name in enumerate(tenant_names)], np.int64)


def _repeated(first_s: NDArray[np.float64], every_s: float, duration_s: float) -> tuple[NDArray[np.float64], Column]:
    """Repeat first times until the end; returns the times in order, and whose they are."""
    rounds = int(np.ceil(duration_s / every_s))
    times_s = (first_s[None, :] + np.arange(rounds)[:, None] * every_s).reshape(-1)
    owners = np.tile(np.arange(len(first_s)), rounds)
    order = np.argsort(times_s, kind="stable")
    order = order[times_s[order] < duration_s]
    return times_s[order], owners[order]
