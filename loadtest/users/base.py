"""`HplmUser`: the Locust user for locustfiles of one's own.

Usage:
    class Shopper(HplmUser):
        rate = 2.0

        @task
        def ask(self) -> None:
            self.client.infer("acme/returns", "It arrived broken.", deadline_ms=300)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gevent import Greenlet, get_hub
from gevent.local import local
from gevent.pool import Group
from locust import User, events
from locust.env import Environment
from locust.exception import StopUser

from hplm_client.environment import URL_VARIABLE
from loadtest.errors import RunError
from loadtest.users.client import UserClient
from loadtest.users.verdict import VERDICT
from workload.spec import parse_arrivals

_logger = logging.getLogger(__name__)
_DEFAULT_URL = "grpc://localhost:8001"
_SHORTEST_DRAW_S = 60.0
_REQUESTS_A_DRAW = 100


class HplmUser(User):
    """A user that asks hPLMs in an open loop: a task begins when it is due, whatever still waits for its answer.

    A subclass that sets `wait_time` gets Locust's closed loop instead: a task, a pause, the next task.

    Attributes:
        host: The server: `grpc://host:port` or `http://host:port`. Locust's `--host` and the web page go before it.
        rate: Tasks that each user begins per second, on average.
        arrivals: When they begin: `poisson`, `even`, `gamma:cv=2` or `bursts:ratio=9,stay=2s`.
        client: Asks hPLMs and reports to Locust.
    """

    abstract = True
    host: str | None = os.environ.get(URL_VARIABLE) or _DEFAULT_URL
    rate: float = 1.0
    arrivals: str = "poisson"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        VERDICT.users += 1
        self.client = UserClient(environment, self.host or _DEFAULT_URL, self._due_of_request)
        self._begun_s = time.monotonic()
        self._due = local()
        self._under_way = Group()
        self._newest: Greenlet | None = None
        self._next_due_s = 0.0
        if self._is_open_loop():
            if any(isinstance(task, type) for task in self.tasks):
                raise RunError(f"{type(self).__name__} has nested task sets, which need a wait_time")
            self._planned = self.planned()
            self.tasks: list[Any] = [_at_its_time(task) for task in self.tasks]

    def planned(self) -> Iterator[float]:
        """The times at which tasks are due, in seconds since the user began; the user stops after the last one."""
        process, rng = parse_arrivals(self.arrivals).at_rate(self.rate), np.random.default_rng()
        duration_s = max(_SHORTEST_DRAW_S, _REQUESTS_A_DRAW / self.rate)
        for number in range(1 << 62):
            yield from (process.times_s(duration_s, rng) + number * duration_s).tolist()

    def wait_time(self) -> float:
        """Wait until the task that was planned last is due."""
        return max(0.0, self._next_due_s - time.monotonic())

    def begin(self, task: Callable[[Any], Any]) -> None:
        """Let a task run when it is due; an open loop calls this for each."""
        due_s = next(self._planned, None)
        if due_s is None:
            self._under_way.join()
            raise StopUser
        self._next_due_s = self._begun_s + due_s
        self._newest = Greenlet(self._run_task, task, self._next_due_s)
        self._under_way.add(self._newest)
        get_hub().loop.update_now()  # timers count from here, not from when the loop woke last
        self._newest.start_later(max(0.0, self._next_due_s - time.monotonic()))

    def stop(self, force: bool = False) -> bool:
        """Begin no further task; those under way end within Locust's stop timeout."""
        if self._newest is not None and time.monotonic() < self._next_due_s:
            self._newest.kill(block=False)
        if not force:
            self._under_way.join(timeout=self.environment.stop_timeout)
        self._under_way.kill(block=False)
        return bool(super().stop(force))

    def _is_open_loop(self) -> bool:
        return type(self).wait_time is HplmUser.wait_time

    def _run_task(self, task: Callable[[Any], Any], due_s: float) -> None:
        self._due.at_s = due_s
        try:
            task(self)
        except Exception as error:  # as Locust does for tasks that it runs itself
            self.environment.events.user_error.fire(user_instance=self, exception=error, tb=error.__traceback__)
            _logger.exception("a task has failed")

    def _due_of_request(self) -> float:
        """Return when the first request of a task was due; later ones of the same task are due when they are made."""
        return float(self._due.__dict__.pop("at_s", time.monotonic()))


VERDICT.listen(events)


def _at_its_time(task: Any) -> Callable[[HplmUser], None]:
    return lambda user: user.begin(task)
