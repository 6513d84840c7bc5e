"""The four scenarios as Locust users; how many there are is Locust's `--users`.

SteadyUser    asks one hPLM once in 20 s, from a random moment on
BurstUser     asks one hPLM 50 times, every 1.2 s, then ends; 250 users at a spawn rate of 20 are the scenario `burst`
OverloadUser  asks at a rate, any hPLM each time
TraceUser     plays a recorded trace; there is one of them, on one worker
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from locust import task
from locust.env import Environment

from hplm_client import Request
from loadtest.scenarios import Content, Replay
from loadtest.schedule import Schedule
from loadtest.users.base import HplmUser
from loadtest.users.options import every_s_of, tenants_of
from loadtest.users.rank import Rank
from workload.spec import parse_arrivals
from workload.traces import read_trace

_DRAWN_AT_ONCE = 64
_logger = logging.getLogger(__name__)


class ScenarioUser(HplmUser):
    """Plays schedules that a scenario draws, each row at its time.

    Attributes:
        content: Set when a test starts; without it there is nothing to play.
        rank: That of this worker.
        number: How many users of this class the process began before this one.
    """

    abstract = True
    content: Content | None = None
    rank = Rank()
    _numbers: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def set_content(content: Content | None, rank: Rank = Rank()) -> None:
        """Say what the users that begin from now on play; their numbers begin anew."""
        ScenarioUser.content, ScenarioUser.rank = content, rank
        ScenarioUser._numbers.clear()

    def __init__(self, environment: Environment) -> None:
        kind = type(self).__name__
        self.number = self._numbers[kind]
        self._numbers[kind] += 1
        options: Any = environment.parsed_options
        self.options = options
        worker = getattr(environment.runner, "worker_index", -1) + 1
        self.rng = np.random.default_rng((int(options.seed), worker, self.number, crc32(kind.encode())))
        self._requests: deque[Request] = deque()
        super().__init__(environment)

    def planned(self) -> Iterator[float]:
        if self.content is None:
            return
        for schedule in self.schedules(self.content):
            for row, at_s in enumerate(schedule.times_s.tolist()):
                self._requests.append(schedule.request(row, schedule.deadline_ms(row)))
                yield at_s

    def schedules(self, content: Content) -> Iterator[Schedule]:
        """Draw what this user sends, a part at a time; times are seconds since the user began."""
        raise NotImplementedError

    @task
    def ask(self) -> None:
        request = self._requests.popleft()
        self.client.infer(
            request.hplm, request.text, request.text_pair, deadline_ms=request.deadline_ms, level=request.level
        )


class SteadyUser(ScenarioUser):
    def schedules(self, content: Content) -> Iterator[Schedule]:
        every_s = every_s_of(self.options, "20s")
        own = np.full(_DRAWN_AT_ONCE, self.rank.hplm_of(self.number, len(content.hplms)))
        first_s = self.rng.random() * every_s
        for turn in itertools.count():
            times_s = first_s + every_s * (turn * _DRAWN_AT_ONCE + np.arange(_DRAWN_AT_ONCE))
            yield content.schedule(times_s, own, self.rng)


class BurstUser(ScenarioUser):
    def schedules(self, content: Content) -> Iterator[Schedule]:
        count = int(self.options.requests)
        own = tenants_of(self.options)(len(content.hplms)).draw(1, self.rng)
        yield content.schedule(every_s_of(self.options, "1.2s") * np.arange(count), np.repeat(own, count), self.rng)


class OverloadUser(ScenarioUser):
    def schedules(self, content: Content) -> Iterator[Schedule]:
        rate = float(self.options.rate)
        process = parse_arrivals(self.options.arrivals).at_rate(rate)
        tenants = tenants_of(self.options)(len(content.hplms))
        duration_s = _DRAWN_AT_ONCE / rate
        for turn in itertools.count():
            times_s = process.times_s(duration_s, self.rng) + turn * duration_s
            if len(times_s):
                yield content.schedule(times_s, tenants.draw(len(times_s), self.rng), self.rng)


class TraceUser(ScenarioUser):
    fixed_count = 1

    def schedules(self, content: Content) -> Iterator[Schedule]:
        if not self.options.trace:
            _logger.warning("TraceUser has no --trace and sends nothing")
            return
        replay = Replay(read_trace(Path(self.options.trace)), tenants_of(self.options), float(self.options.speed))
        yield replay.schedule(content, self.rng)
