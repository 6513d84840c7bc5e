"""The Locust master: starts local workers or waits for those of other machines, hands out shares, collects outcomes."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.exception import RPCError

from loadtest.errors import RunError
from loadtest.generator.messages import Finished, MessageName, Share, outcomes_of
from loadtest.generator.runner import LimitedRunner
from loadtest.generator.user import OpenLoopUser
from loadtest.outcome import Outcome
from loadtest.schedule import Schedule
from loadtest.sender import Target
from loadtest.workers import Workers

_POLL_S = 0.05
_SHARE_AGAIN_S = 0.5
_LOCAL_WORKERS_READY_S = 60.0
_LEAD_S = 1.0
"""The time from GO until second 0: every worker must have received GO by then."""
_END_S = 5.0


@dataclass(frozen=True)
class Ending:
    """The end of a load: what went wrong, in words, and the CPU time that all workers took."""

    trouble: tuple[str, ...]
    client_cpu_s: float


class Master:
    def __init__(self, workers: Workers, log: Path) -> None:
        hub = gevent.get_hub()
        # Ctrl-C ends a load; gevent need not print its traceback.
        hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)
        self._workers = workers
        self._log = log
        self._port = _free_port() if workers.listen_port is None else workers.listen_port
        self._armed: set[str] = set()
        self._finished: dict[str, Finished] = {}
        self._take_outcomes: Callable[[Sequence[Outcome]], None] | None = None
        self._runner = self._open_runner()

    def play(
        self,
        target: Target,
        schedule: Schedule,
        on_outcomes: Callable[[Sequence[Outcome]], None],
        on_waiting: Callable[[int, int], None],
        on_tick: Callable[[float], None],
    ) -> Ending:
        """Play a schedule to its end.

        `on_waiting` is called with the numbers of workers that are connected and that are needed, `on_tick` with the
        seconds since the start.
        """
        self._take_outcomes = on_outcomes
        with self._local_workers() as processes:
            try:
                self._await(self._workers.count, processes, on_waiting)
                starts_at = self._start(target, schedule, processes)
                trouble = self._watch(processes, starts_at, on_tick)
            finally:
                self._runner.quit()
        return Ending(tuple(trouble), sum(finished.cpu_s for finished in self._finished.values()))

    def _open_runner(self) -> LimitedRunner:
        # The master sends no requests; Locust identifies the users that it hands out by their class.
        environment = Environment(user_classes=[OpenLoopUser])
        bind = "127.0.0.1" if self._workers.listen_port is None else "*"
        try:
            runner = LimitedRunner(environment, bind, self._port, self._workers.count)
        except (RPCError, SystemExit) as error:
            raise RunError(f"port {self._port} for the workers is taken; choose another one") from error
        environment.runner = runner
        runner.register_message(MessageName.ARMED, self._on_armed)
        runner.register_message(MessageName.OUTCOMES, self._on_outcomes)
        runner.register_message(MessageName.FINISHED, self._on_finished)
        return runner

    @contextmanager
    def _local_workers(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        count = self._workers.count if self._workers.listen_port is None else 0
        command = [sys.executable, "-m", "loadtest.generator.worker", "127.0.0.1", str(self._port), "--owned"]
        processes: list[subprocess.Popen[bytes]] = []
        with self._log.open("ab") as log:
            try:
                for _ in range(count):
                    # A session of its own: Ctrl-C reaches the master only, which ends its workers in order.
                    processes.append(
                        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
                    )
                yield processes
            finally:
                for process in processes:
                    _end(process)

    def _await(self, count: int, processes: Sequence[subprocess.Popen[bytes]], on_waiting: Any) -> None:
        deadline = time.monotonic() + _LOCAL_WORKERS_READY_S
        while (connected := len(self._runner.clients.ready)) < count:
            on_waiting(connected, count)
            gevent.sleep(_POLL_S)
            if any(process.poll() is not None for process in processes):
                raise RunError(f"a load worker did not start; see {self._log}")
            if processes and time.monotonic() > deadline:
                raise RunError(f"load workers were not ready within {_LOCAL_WORKERS_READY_S:g} s; see {self._log}")

    def _start(self, target: Target, schedule: Schedule, processes: Sequence[subprocess.Popen[bytes]]) -> float:
        senders = self._runner.choose_senders()
        shares = {worker: Share(target, schedule.share(index, len(senders))) for index, worker in enumerate(senders)}
        deadline = time.monotonic() + _LOCAL_WORKERS_READY_S
        sent_at = -math.inf
        while unarmed := set(senders) - self._armed:
            # Again, because a worker calls itself ready a moment before it listens for its share.
            if time.monotonic() - sent_at >= _SHARE_AGAIN_S:
                sent_at = time.monotonic()
                for worker in unarmed:
                    self._runner.send_message(MessageName.SHARE, shares[worker].to_message(), worker)
            gevent.sleep(_POLL_S)
            if self._lost(processes) or time.monotonic() > deadline:
                raise RunError(f"a load worker was lost before the start; see {self._log}")
        self._runner.start(len(senders), spawn_rate=len(senders))
        starts_at = time.time() + _LEAD_S
        self._runner.send_message(MessageName.GO, {"starts_at_unix": starts_at})
        return starts_at

    def _watch(
        self, processes: Sequence[subprocess.Popen[bytes]], starts_at: float, on_tick: Callable[[float], None]
    ) -> list[str]:
        """Wait until every worker has finished or is lost; returns what went wrong."""
        lost = 0
        while len(self._finished) + lost < self._workers.count:
            gevent.sleep(_POLL_S)
            on_tick(time.time() - starts_at)
            lost = self._lost(processes)
        failures = [finished.failure for finished in self._finished.values() if finished.failure]
        trouble = [f"a load worker failed: {failure}" for failure in failures]
        return trouble + [f"{lost} of {self._workers.count} load workers were lost"] * (lost > 0)

    def _lost(self, processes: Sequence[subprocess.Popen[bytes]]) -> int:
        """Count the workers that ended before they had finished."""
        if processes:
            # A worker that has finished stays until it is told to quit.
            return sum(process.poll() is not None for process in processes)
        connected = {worker.id for worker in self._runner.clients.all if worker.state != "missing"}
        return max(0, self._workers.count - len(connected | self._finished.keys()))

    def _on_armed(self, msg: Any, **_: Any) -> None:
        self._armed.add(msg.node_id)

    def _on_outcomes(self, msg: Any, **_: Any) -> None:
        if self._take_outcomes is not None:
            self._take_outcomes(outcomes_of(msg.data))

    def _on_finished(self, msg: Any, **_: Any) -> None:
        self._finished[msg.node_id] = Finished(**msg.data)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
