"""The verdict on a run in which no request came back, which Locust by itself would end with the exit code 0."""

from __future__ import annotations

import logging
from typing import Any

from locust.env import Environment
from locust.event import Events
from locust.runners import WorkerRunner

_COUNTS = "hplm_counts"
_logger = logging.getLogger(__name__)


class Verdict:
    """Counts the users and requests that begin, here and on a master's workers, and judges when Locust quits.

    Locust drops the requests that wait when a run ends: a server that answers none of them leaves its tables empty.

    Attributes:
        users: Users that began in this process since the test did.
        requests: Requests that they made.
    """

    def __init__(self) -> None:
        self.users = 0
        self.requests = 0
        self._has_begun = False
        self._of_workers: dict[str, tuple[int, int]] = {}

    def listen(self, events: Events) -> None:
        events.test_start.add_listener(self._begin)
        events.report_to_master.add_listener(self._report)
        events.worker_report.add_listener(self._take_report)
        events.quitting.add_listener(self._judge)

    def _begin(self, **_: Any) -> None:
        self.users, self.requests = 0, 0
        self._has_begun = True
        self._of_workers.clear()

    def _report(self, data: dict[str, Any], **_: Any) -> None:
        data[_COUNTS] = self.users, self.requests

    def _take_report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        users, requests = data.get(_COUNTS, (0, 0))
        self._of_workers[client_id] = users, requests

    def _judge(self, environment: Environment, **_: Any) -> None:
        """Set the exit code of a run from which nothing came back; one in which nothing was due is well."""
        runner: Any = environment.runner
        is_judged = environment.process_exit_code is not None or environment.stats.total.num_requests > 0
        if not self._has_begun or is_judged or runner.exceptions or isinstance(runner, WorkerRunner):
            return
        counts = [(self.users, self.requests), *self._of_workers.values()]
        users, requests = (sum(each) for each in zip(*counts, strict=True))
        if users and not requests:
            _logger.warning("no request was made before the run ended: none was due")
            return
        _logger.error("no request was answered or failed before the run ended (%d were made)", requests)
        options: Any = environment.parsed_options
        environment.process_exit_code = options.exit_code_on_error


VERDICT = Verdict()
"""That of this process."""
