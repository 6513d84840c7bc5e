"""The gateway of a fleet is started again where it dies."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builder.fleet import admin as admin_module
from builder.fleet import front as front_module
from builder.fleet.front import Front
from builder.fleet.gateway_config import GatewaySettings
from builder.fleet.gateway_program import find_gateway
from builder.serving.errors import ServerStartError
from builder.serving.ports import ClaimedPorts
from builder.serving.run_folder import RunFolder
from stand_in_servers import StandIn
from waiting import wait_until


@contextmanager
def front_of(server: StandIn, folder: Path, max_restarts: int, reports: list[str]) -> Iterator[Front]:
    ports = ClaimedPorts.take([("127.0.0.1", None)] * 2)
    settings = GatewaySettings(http=ports.numbers[0], grpc=ports.numbers[1])
    front = Front(find_gateway(), settings, folder / "gateway.log", max_restarts, reports.append)
    front.start([server.upstream], lambda: None)
    try:
        yield front
    finally:
        front.stop()
        ports.release()


def test_a_gateway_that_dies_is_replaced_until_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[str] = []
    server = StandIn("server-1")
    try:
        with front_of(server, tmp_path, 3, reports) as front:
            first = front.entry()
            assert first.state == "ready" and first.pid is not None and first.restarts == 0
            kill_and_wait(front, first.pid)
            assert not front.is_running and front.entry().pid is None
            with monkeypatch.context() as failing:  # for the first two of three restarts
                for failure in (no_keeper, no_space_left):
                    failing.setattr(RunFolder, "create", once(RunFolder.create, failure))
                front.look_after(lambda: None)
            second = front.entry()
            assert second.state == "ready" and second.pid not in (None, first.pid) and second.restarts == 3
            assert (second.http, second.grpc) == (first.http, first.grpc)
            assert "the gateway ended by SIGKILL" in reports[0] and "is ready again" in reports[-1]
            assert "the gateway was not started again: [Errno 28]" in reports[1]
            assert reports[3] == "the gateway was not started again: its keeper ended at once"
            assert second.pid is not None
            kill_and_wait(front, second.pid)
            with pytest.raises(ServerStartError, match=r"the gateway ended by SIGKILL.*it was restarted 3 times"):
                front.look_after(lambda: None)
    finally:
        server.close()


def test_a_gateway_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "_TIMEOUT_S", 0.1)
    monkeypatch.setattr(front_module, "_NOT_READY_S", 0.2)
    monkeypatch.setattr(front_module, "_HANGS_S", 2.0)
    reports: list[str] = []
    server = StandIn("server-1")
    try:
        with front_of(server, tmp_path, 3, reports) as front:
            first = front.entry()
            front.look_after(lambda: None)
            assert first.pid is not None and front.why_not_ready() is None and reports == []
            os.kill(first.pid, signal.SIGSTOP)
            reasons = []

            def is_replaced() -> bool:
                front.look_after(lambda: None)
                reasons.append(front.why_not_ready())
                return front.entry().pid != first.pid

            wait_until(is_replaced)
            assert any("the gateway has said nothing for" in reason for reason in reasons if reason is not None)
            wait_until(lambda: front.entry().state == "ready" and front.why_not_ready() is None)
            assert reports[0].startswith("the gateway has said nothing for ") and "is ready again" in reports[-1]
    finally:
        server.close()


def no_space_left() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_keeper() -> None:
    raise ServerStartError("its keeper ended at once")


def once(create: Callable[[], RunFolder], failure: Callable[[], None]) -> Callable[[], RunFolder]:
    """Fail at the first call."""
    failures = [failure]

    def create_later() -> RunFolder:
        if failures:
            failures.pop()()
        return create()

    return create_later


def kill_and_wait(front: Front, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not front.is_running)
