"""When a server is told to be ready: once its first canaries have outcomes, and not where only Triton says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.serving import supervisor as module
from builder.serving.config import Ports, ServerConfig
from builder.serving.errors import ServerStartError
from builder.serving.notify import ServiceManager
from builder.serving.supervisor import Supervision, Supervisor
from builder.serving.vital_signs import Complaint
from builder.termination import StopRequests
from waiting import wait_until

NO_ANSWER = Complaint("no answer over HTTP: none within 4 s")


class Server:
    """A server that Triton says is ready."""

    ports = Ports(1, 2, 3)
    pid = 1
    http_url = grpc_url = "127.0.0.1:1"

    def __init__(self, config: ServerConfig, on_log: object = None) -> None:
        self.run_folder = config.repository

    def start(self) -> None:
        pass

    def wait_ready(self, on_poll: Callable[[], None]) -> None:
        on_poll()

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Service(ServiceManager):
    """Notes what systemd is told."""

    def __init__(self) -> None:
        super().__init__({})
        self.told: list[str] = []

    def _send(self, state: str) -> None:
        self.told.append(state)


class Signs(SimpleNamespace):
    watched: Watched

    @property
    def num_open(self) -> int:
        return self.watched.num_open()


class Watched:
    """A supervisor of such servers; `complaints_of` says what the canary of each has to say."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, complaints_of: Callable[[int], list[Complaint]], most: int = 5
    ) -> None:
        self.service, self.stop, self.reports = Service(), StopRequests(), list[str]()
        self.num_canaries = 0
        self.num_open: Callable[[], int] = int
        signs = Signs(look=list, silent_loops=list, num_answered=int, watched=self)
        seal = SimpleNamespace(canary_token="")
        patch.setattr(module, "TritonServer", Server)
        patch.setattr(module, "VitalSigns", lambda *_: signs)
        patch.setattr(module, "Seal", SimpleNamespace(of_watched=lambda *_: seal))
        patch.setattr(module, "Canary", lambda *_: self._canary(complaints_of))
        patch.setattr(module, "_LOOK_EVERY_S", 0.01)
        config, supervision = ServerConfig(repository=folder), Supervision(max_restarts=most)
        self.supervisor = Supervisor(config, supervision, list, self.stop, self.reports.append, service=self.service)

    def _canary(self, complaints_of: Callable[[int], list[Complaint]]) -> SimpleNamespace:
        self.num_canaries += 1
        number = self.num_canaries
        complaints = lambda: complaints_of(number)  # noqa: E731 - each canary has its number
        return SimpleNamespace(wait_for_first=lambda _: True, complaints=complaints, close=lambda: None)


def test_ready_is_told_once_requests_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints = [NO_ANSWER]
    watched = Watched(tmp_path, monkeypatch, lambda _: list(complaints))
    with ThreadPoolExecutor(1) as threads:
        started = threads.submit(watched.supervisor.start)
        wait_until(lambda: watched.supervisor.is_ready().reasons == [NO_ANSWER.text])
        assert not watched.supervisor.has_started().is_so and not started.done()
        assert watched.service.told == []
        complaints.clear()
        assert started.result(30)
    assert watched.supervisor.has_started().is_so and watched.supervisor.is_ready().is_so
    assert watched.service.told == ["READY=1"]
    assert watched.reports == [f"not ready: {NO_ANSWER.text}"]


def test_a_first_server_that_answers_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fatal = Complaint(NO_ANSWER.text, fatal=True)
    watched = Watched(tmp_path, monkeypatch, lambda number: [fatal] if number == 1 else [])
    assert watched.supervisor.start()
    assert watched.supervisor.num_restarts == 1 and watched.service.told == ["READY=1"]
    unready, restarted, ready = watched.reports
    assert unready == f"not ready: {fatal.text}"
    assert restarted == f"{fatal.text}; restart 1 of at most 5 within 10 minutes"
    assert ready.startswith("ready again ")


def test_servers_that_answer_nothing_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, lambda _: [Complaint("nothing", fatal=True)], most=2)
    with pytest.raises(ServerStartError, match="nothing; it was restarted 2 times"):
        watched.supervisor.start()
    assert watched.service.told == [] and not watched.supervisor.has_started().is_so
    assert not [line for line in watched.reports if line.startswith("ready again")]


def test_a_stop_ends_the_wait_for_a_first_answer_and_finishes_what_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "begin_draining", lambda _: None)
    for pause in ("_NOTICE_S", "_DRAIN_POLL_S"):
        monkeypatch.setattr(module, pause, 0.01)
    watched = Watched(tmp_path, monkeypatch, lambda _: [NO_ANSWER])
    num_open = [5]
    watched.num_open = lambda: num_open[0]
    with ThreadPoolExecutor(1) as threads:
        started = threads.submit(watched.supervisor.start)
        wait_until(lambda: bool(watched.reports))
        watched.stop.requested = True
        wait_until(lambda: len(watched.reports) == 2)
        assert "finishing what was accepted" in watched.reports[1] and not started.done()
        num_open[0] = 0
        assert not started.result(30)
    assert watched.reports[2:] == ["drained: nothing is open"]
    assert watched.service.told == ["STOPPING=1"]
