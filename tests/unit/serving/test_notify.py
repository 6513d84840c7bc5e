"""What systemd is told, on a socket that stands for its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.serving.notify import ServiceManager


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "file" else f"\0hplm-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name.replace("\0", "@"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        yield listener


def test_it_is_told_what_happens_and_pinged_now_and_then(manager: socket.socket) -> None:
    service = ServiceManager()
    service.ready()
    for _ in range(5):
        service.alive()
    service.stopping()
    assert [manager.recv(100).decode() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_manager_that_is_gone_is_nothing_to_the_server(manager: socket.socket) -> None:
    manager.close()
    ServiceManager().ready()


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    ServiceManager().ready()
    ServiceManager().alive()
