"""The four scenarios as Locust users; how many there are is Locust's `--users`.

SteadyUser    asks one hPLM once in 20 s, from a random moment on
BurstUser     asks one hPLM 50 times, every 1.2 s, then ends; 250 users at a spawn rate of 20 are the scenario `burst`
OverloadUser  asks at a rate, any hPLM each time
TraceUser     plays a recorded trace; there is one of them, on one worker
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import numpy as np
from locust import task
from locust.env import Environment
from locust.runners import STATE_INIT, STATE_SPAWNING, MasterRunner, Runner

from hplm_client import ClientError, Request
from loadtest.errors import RunError
from loadtest.scenarios import Content, Replay
from loadtest.schedule import Schedule
from loadtest.server import pairs_among
from loadtest.users.base import HplmUser
from loadtest.users.greenlets import GreenletClient
from loadtest.users.options import check, content_of, every_s_of, hplms_of, tenants_of
from workload.errors import WorkloadError
from workload.spec import parse_arrivals
from workload.traces import read_trace

_DRAWN_AT_ONCE = 64
_WRONG_OPTION = 2
_START_S = 5.0
_logger = logging.getLogger(__name__)


def prepare(environment: Environment, **_: Any) -> None:
    """Read the options when a test starts; a master looks up the hPLMs for its workers, and these ask each once."""
    options: Any = environment.parsed_options
    try:
        check(options)
        _require_trace(environment)
        hplms = hplms_of(options)
        options.hplms = ",".join(hplms)
        if not isinstance(environment.runner, MasterRunner):
            url = environment.host or HplmUser.host or ""
            with GreenletClient(url) as client:
                pairs = pairs_among(client, hplms, url, options.level or None)
            ScenarioUser.content = content_of(options, hplms, pairs)
    except (RunError, WorkloadError, ClientError) as error:
        _logger.error("%s", error)
        environment.process_exit_code = _WRONG_OPTION
        if environment.runner is not None:
            gevent.spawn(_quit_once_started, environment.runner)


def _require_trace(environment: Environment) -> None:
    """Check that there is something to play for who plays a trace; a master's workers may have it alone.

    Raises:
        RunError, WorkloadError: There is no trace, or it cannot be read.
    """
    options: Any = environment.parsed_options
    if options.trace and not isinstance(environment.runner, MasterRunner):
        read_trace(Path(options.trace))
    elif not options.trace and environment.user_classes == [TraceUser]:
        raise RunError("TraceUser needs a --trace")


def _quit_once_started(runner: Runner) -> None:
    """End a test; a runner that is told to quit while it starts goes on to start, until its time is up."""
    with gevent.Timeout(_START_S, False):
        while runner.state in (STATE_INIT, STATE_SPAWNING):
            gevent.sleep(0.05)
    gc.collect()  # gRPC's channels close for ever where that happens at the interpreter's end
    runner.quit()


class ScenarioUser(HplmUser):
    """Plays schedules that a scenario draws, each row at its time."""

    abstract = True
    content: Content | None = None
    """Set when a test starts."""
    _numbers = itertools.count()

    def __init__(self, environment: Environment) -> None:
        self.number = next(self._numbers)
        options: Any = environment.parsed_options
        self.options = options
        worker = getattr(environment.runner, "worker_index", -1) + 1
        self.rng = np.random.default_rng((int(options.seed), worker, self.number))
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
        own = np.full(_DRAWN_AT_ONCE, self.number % len(content.hplms))
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
