"""The preparation of a test: from its options to what the scenarios' users play, or to its end."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import gevent
from gevent import GreenletExit
from locust.env import Environment
from locust.event import Events
from locust.runners import MasterRunner, WorkerRunner

from hplm_client import ClientError
from loadtest.errors import RunError
from loadtest.server import pairs_among
from loadtest.users.base import HplmUser
from loadtest.users.greenlets import GreenletClient
from loadtest.users.options import check, content_of, hplms_of
from loadtest.users.rank import Rank, in_order_of_dispatch
from loadtest.users.scenarios import ScenarioUser, TraceUser
from workload.errors import WorkloadError
from workload.traces import read_trace

UNPREPARED = 2
"""The exit code of a process whose last test could not be played."""
_FAILURE = "hplm_failure"
_logger = logging.getLogger(__name__)


class Preparation:
    """Prepares each test that starts in this process, and ends one that cannot be played.

    A master looks up the hPLMs for its workers, and these ask the server for each once. What a worker cannot prepare
    ends the test for all. The process keeps the exit code 2 until a test is prepared, so a run that ends before has it.
    """

    def __init__(self) -> None:
        self._starting: Any = None
        """The greenlet in which the test starts."""

    def listen(self, events: Events) -> None:
        events.init.add_listener(self._await_failures)
        events.test_start.add_listener(self.prepare)

    def prepare(self, environment: Environment, **_: Any) -> None:
        """Set what the users play.

        Raises:
            GreenletExit: The test cannot be played; the greenlet that starts it is to end.
        """
        runner: Any = environment.runner
        before, environment.process_exit_code = environment.process_exit_code, UNPREPARED
        self._starting = gevent.getcurrent()
        ScenarioUser.set_content(None)
        try:
            _set_content(environment, runner)
        except GreenletExit:
            _logger.error("the run ended before it was prepared: is --run-time too short, or does the server hang?")
            raise
        except (RunError, WorkloadError, ClientError) as error:
            why = str(error)
        else:
            environment.process_exit_code = None if before == UNPREPARED else before
            return
        if isinstance(runner, WorkerRunner):
            _logger.error("%s", why)
            runner.send_message(_FAILURE, {"why": why})
            return
        self._end(environment, why)
        raise GreenletExit

    def _await_failures(self, environment: Environment, runner: Any, **_: Any) -> None:
        if isinstance(runner, MasterRunner):
            runner.register_message(_FAILURE, self._take_failure)

    def _take_failure(self, environment: Environment, msg: Any, **_: Any) -> None:
        environment.process_exit_code = UNPREPARED
        self._end(environment, f"worker {msg.node_id}: {msg.data['why']}")

    def _end(self, environment: Environment, why: str) -> None:
        _logger.error("%s", why)
        runner: Any = environment.runner
        runner.log_exception("", why, why)  # the web page shows it
        gevent.spawn(_stop, environment, runner, self._starting)


def _set_content(environment: Environment, runner: Any) -> None:
    """Read the options and ask the server.

    Raises:
        RunError, WorkloadError: An option cannot be read, or the server lacks an hPLM.
        ClientError: The server cannot be reached, or rejects a request.
    """
    options: Any = environment.parsed_options
    check(options)
    _require_trace(environment, runner)
    hplms = hplms_of(options)
    options.hplms = ",".join(hplms)
    if isinstance(runner, MasterRunner):
        workers = runner.clients.ready + runner.clients.spawning + runner.clients.running
        options.hplm_workers = in_order_of_dispatch(worker.id for worker in workers)  # travels with the options
        return
    url = environment.host or HplmUser.host or ""
    # HPLM_TIMEOUT and HPLM_DEADLINE are for requests that count; without them each may take 30 s.
    with GreenletClient(url).with_options(deadline_ms=None, timeout_s=None) as client:
        pairs = pairs_among(client, hplms, url, options.level or None)
    rank = Rank.among(runner.client_id, options.hplm_workers) if isinstance(runner, WorkerRunner) else Rank()
    ScenarioUser.set_content(content_of(options, hplms, pairs), rank)


def _require_trace(environment: Environment, runner: Any) -> None:
    """Check that there is something to play for who plays a trace; a master's workers may have it alone.

    Raises:
        RunError, WorkloadError: There is no trace, or it cannot be read.
    """
    options: Any = environment.parsed_options
    if options.trace and not isinstance(runner, MasterRunner):
        read_trace(Path(options.trace))
    elif not options.trace and environment.user_classes == [TraceUser]:
        raise RunError("TraceUser needs a --trace")


def _stop(environment: Environment, runner: Any, starting: Any) -> None:
    """End a test; with the web page Locust goes on, because the next test may be better."""
    starting.kill()  # a master that is told to stop while it starts goes on to start
    options: Any = environment.parsed_options
    if options.headless:
        gc.collect()  # gRPC's channels close for ever where that happens at the interpreter's end
        runner.quit()
    else:
        runner.stop()
