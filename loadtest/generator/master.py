"""The Locust master: starts local workers or waits for those of other machines, hands out shares, collects outcomes."""

from __future__ import annotations

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
from locust.runners import MasterRunner

from loadtest.errors import RunError
from loadtest.generator.messages import MessageName, Share, outcomes_of
from loadtest.generator.user import OpenLoopUser
from loadtest.outcome import Outcome
from loadtest.schedule import Schedule
from loadtest.sender import Target

_POLL_S = 0.05
_SHARE_AGAIN_S = 0.5
_LOCAL_WORKERS_READY_S = 60.0
_LEAD_S = 1.0
"""From GO until second 0: every worker must have heard it by then."""
_END_S = 5.0


@dataclass(frozen=True)
class Crew:
    """Who sends: local processes, or with `listen` as many workers of other machines, which come to that port."""

    workers: int = 1
    listen: int | None = None


@dataclass(frozen=True)
class Playback:
    """How a playback ended: when second 0 was, and what went wrong, in words."""

    starts_at_unix: float
    trouble: tuple[str, ...]


class Master:
    def __init__(self, crew: Crew, log: Path) -> None:
        hub = gevent.get_hub()
        # Ctrl-C ends a load; it is no error whose traceback anybody wants.
        hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)
        self._crew = crew
        self._log = log
        self._port = _free_port() if crew.listen is None else crew.listen
        self._armed: set[str] = set()
        self._finished: dict[str, str | None] = {}
        self._on_outcomes: Callable[[Sequence[Outcome]], None] | None = None
        self._runner = self._open_runner()

    def play(
        self,
        target: Target,
        schedule: Schedule,
        on_outcomes: Callable[[Sequence[Outcome]], None],
        on_waiting: Callable[[int, int], None],
        on_tick: Callable[[float], None],
    ) -> Playback:
        """Play a schedule to its end.

        `on_waiting` hears how many workers are there of how many, `on_tick` the seconds since the start.
        """
        self._on_outcomes = on_outcomes
        with self._local_workers() as processes:
            try:
                self._await(self._crew.workers, processes, on_waiting)
                starts_at = self._start(target, schedule, processes)
                trouble = self._watch(processes, starts_at, on_tick)
            finally:
                self._runner.quit()
        return Playback(starts_at, tuple(trouble))

    def _open_runner(self) -> MasterRunner:
        # A master sends nothing itself; Locust knows the users that it hands out by their class.
        environment = Environment(user_classes=[OpenLoopUser])
        bind = "127.0.0.1" if self._crew.listen is None else "*"
        try:
            runner: MasterRunner = environment.create_master_runner(bind, self._port)
        except (RPCError, SystemExit) as error:
            raise RunError(f"port {self._port} for the workers is taken; choose another one") from error
        runner.register_message(MessageName.ARMED, self._hear_armed)
        runner.register_message(MessageName.OUTCOMES, self._hear_outcomes)
        runner.register_message(MessageName.FINISHED, self._hear_finished)
        return runner

    @contextmanager
    def _local_workers(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        count = self._crew.workers if self._crew.listen is None else 0
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
        give_up_at = time.monotonic() + _LOCAL_WORKERS_READY_S
        while (here := len(self._runner.clients.ready)) < count:
            on_waiting(here, count)
            gevent.sleep(_POLL_S)
            if any(process.poll() is not None for process in processes):
                raise RunError(f"a load worker did not start; see {self._log}")
            if processes and time.monotonic() > give_up_at:
                raise RunError(f"load workers were not ready within {_LOCAL_WORKERS_READY_S:g} s; see {self._log}")

    def _start(self, target: Target, schedule: Schedule, processes: Sequence[subprocess.Popen[bytes]]) -> float:
        crew = [worker.id for worker in self._runner.clients.ready][: self._crew.workers]
        shares = {worker: Share(target, schedule.share(index, len(crew))) for index, worker in enumerate(crew)}
        give_up_at = time.monotonic() + _LOCAL_WORKERS_READY_S
        while unarmed := set(crew) - self._armed:
            # Again, because a worker calls itself ready a moment before it listens for its share.
            for worker in unarmed:
                self._runner.send_message(MessageName.SHARE, shares[worker].to_message(), worker)
            gevent.sleep(_SHARE_AGAIN_S)
            if self._lost(processes) or time.monotonic() > give_up_at:
                raise RunError(f"a load worker was lost before the start; see {self._log}")
        self._runner.start(len(crew), spawn_rate=len(crew))
        starts_at = time.time() + _LEAD_S
        self._runner.send_message(MessageName.GO, {"starts_at_unix": starts_at})
        return starts_at

    def _watch(
        self, processes: Sequence[subprocess.Popen[bytes]], starts_at: float, on_tick: Callable[[float], None]
    ) -> list[str]:
        """Until every worker has finished or is lost."""
        lost = 0
        while len(self._finished) + lost < self._crew.workers:
            gevent.sleep(_POLL_S)
            on_tick(time.time() - starts_at)
            lost = self._lost(processes)
        trouble = [f"a load worker failed: {failure}" for failure in self._finished.values() if failure]
        return trouble + [f"{lost} of {self._crew.workers} load workers were lost"] * (lost > 0)

    def _lost(self, processes: Sequence[subprocess.Popen[bytes]]) -> int:
        """Workers that are gone and had not finished."""
        if processes:
            # Those that have finished stay until they are told to quit.
            return sum(process.poll() is not None for process in processes)
        there = {worker.id for worker in self._runner.clients.all if worker.state != "missing"}
        return max(0, self._crew.workers - len(there | self._finished.keys()))

    def _hear_armed(self, msg: Any, **_: Any) -> None:
        self._armed.add(msg.node_id)

    def _hear_outcomes(self, msg: Any, **_: Any) -> None:
        if self._on_outcomes is not None:
            self._on_outcomes(outcomes_of(msg.data))

    def _hear_finished(self, msg: Any, **_: Any) -> None:
        self._finished[msg.node_id] = msg.data["failure"]


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
