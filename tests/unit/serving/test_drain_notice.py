"""When a drained server begins to reject: once those who send requests have seen that it is not ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from builder.serving import supervisor as module
from builder.serving.config import ServerConfig
from builder.serving.server import TritonServer
from builder.serving.supervisor import Supervision, Supervisor
from builder.serving.vital_signs import VitalSigns
from builder.termination import StopRequests


@pytest.mark.parametrize(
    ("noticed_after_s", "begins_after_s"), [(0.0, 0.1), (0.4, 0.5), (60.0, 1.1)], ids=["at once", "later", "never"]
)
def test_a_drain_rejects_once_it_was_noticed_or_took_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noticed_after_s: float, begins_after_s: float
) -> None:
    monkeypatch.setattr(module, "_NOTICE_S", 0.1)
    monkeypatch.setattr(module, "_NOTICED_S", 1.0)
    monkeypatch.setattr(module, "_DRAIN_POLL_S", 0.01)
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    began_s = clock.monotonic()
    rejected_after_s: list[float] = []
    monkeypatch.setattr(module, "begin_draining", lambda _: rejected_after_s.append(clock.monotonic() - began_s))

    def is_noticed() -> bool:
        assert not watched.is_ready().is_so, "it has to say so first"
        return clock.monotonic() - began_s > noticed_after_s

    watched = watched_server(tmp_path, is_noticed)
    watched.stop_draining()
    assert rejected_after_s[0] == pytest.approx(begins_after_s, abs=0.08)
    assert watched.drained is not None and watched.drained.is_so


class Clock:
    """Time that goes on only while the watchdog sleeps."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class Watched(Supervisor):
    """A watchdog of a server that runs and has nothing to do."""

    def stop_draining(self) -> None:
        self._vital_signs = cast(VitalSigns, SimpleNamespace(num_open=0, silent_loops=list))
        self._phase = None
        self._drain()


def watched_server(folder: Path, is_noticed: Callable[[], bool]) -> Watched:
    config = ServerConfig(repository=folder)
    found = Watched(config, Supervision(), list, StopRequests(), lambda _: None, is_noticed=is_noticed)
    found.server = cast(TritonServer, SimpleNamespace(run_folder=folder, poll=lambda: None))
    return found
