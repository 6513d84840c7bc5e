"""A fleet with the real gateway: what it does when it is told to restart or drain a server, and when it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from backends.errors import ConflictError
from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet import fleet as fleet_module
from builder.fleet.control import order, server_rows
from builder.fleet.errors import NoFleetError
from builder.fleet.fleet import Fleet
from builder.fleet.fleet_folder import FleetFolder, FleetState
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.member_state import MemberState
from builder.fleet.settings import FleetSettings
from builder.serving.errors import BusyError, ServerStartError
from builder.serving.health import Verdict
from builder.termination import StopRequests
from stand_in_members import StandInMember
from waiting import LIMIT_S, wait_until

FREE = FleetSettings(http=None, grpc=None, health_port=None, first_port=None)


class Running:
    """A fleet of two that looks after itself on a thread; `ended` is what ended it."""

    def __init__(self, home: Home, fleet: Fleet, stop: StopRequests, said: list[str]) -> None:
        self.folder, self.fleet, self.stop, self.said = FleetFolder(home), fleet, stop, said
        self.first, self.second = (StandInMember(member.name) for member in fleet.members)
        fleet.members = [self.first, self.second]  # type: ignore[list-item]
        self.ended: str | None = None
        self._thread = threading.Thread(target=self._stay)

    def __enter__(self) -> Running:
        assert self.fleet.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.requested = True
        self._thread.join()
        for member in (self.first, self.second):
            member.server.close()

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def state(self) -> FleetState:
        return self.folder.running()

    def _stay(self) -> None:
        try:
            self.fleet.stay()
        except ServerStartError as error:
            self.ended = str(error)


@pytest.fixture
def running(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(fleet_module, "_ROUTED_S", 1.0)
    render_repository(tiny_home.repository, ExportSettings())
    placement = FleetPlacement({"server-3": ()}, groups="7f", servers=("server-1", "server-3"))
    placement.write(FleetFolder(tiny_home).placement)
    said: list[str] = []
    stop = StopRequests()
    fleet = Fleet(tiny_home, FREE, stop, said.append)
    running = Running(tiny_home, fleet, stop, said)
    with fleet, running:
        yield running
    with pytest.raises(NoFleetError):
        FleetFolder(tiny_home).running()


def test_servers_are_drained_and_restarted_while_another_one_is_asked(running: Running) -> None:
    assert running.said[0].startswith("the placement says nothing of server-2")
    assert running.said[1].startswith("the placement is for server-3 too, which this fleet does not have")
    before = {each.server: each.pid for each in running.state.servers}
    assert order(running.state, "restart", "server-1", force=False) == []
    after = {each.server: each.pid for each in running.state.servers}
    assert after["server-1"] != before["server-1"], "who runs is known as soon as the order is carried out"
    assert all(row["in_gateway"] for row in server_rows(running.state))
    assert running.state.order_limit_s == FREE.order_limit_s

    running.second.server.is_ready = False  # it says that it is ready, and the gateway does not ask it
    wait_until(lambda: not server_rows(running.state)[1]["in_gateway"])
    with pytest.raises(ConflictError, match="the gateway asks no server but server-1; --force"):
        order(running.state, "drain", "server-1", force=False)
    admin = Path(str(running.state.gateway.admin))
    admin.rename(admin.with_suffix(".away"))
    with pytest.raises(ConflictError, match="the gateway does not answer; --force"):
        order(running.state, "drain", "server-1", force=False)
    assert not running.fleet.is_unrouted(running.second.server.upstream), "it runs, and may still send requests"
    admin.with_suffix(".away").rename(admin)
    running.first.state = running.second.state = MemberState.NOT_READY
    with pytest.raises(ConflictError, match="server-2 is not ready, and no other one is ready; --force"):
        order(running.state, "drain", "server-2", force=False)
    running.first.state = MemberState.READY
    assert order(running.state, "drain", "server-2", force=True) == []
    with pytest.raises(ConflictError, match="server-1 is the last server that is ready; --force"):
        order(running.state, "drain", "server-1", force=False)

    running.first.fail("a wheel came off")
    wait_until(running.is_over)
    assert running.ended == "all servers have failed or were drained; the last one: a wheel came off"


def test_a_server_that_would_not_come_back_is_not_stopped(running: Running, tiny_home: Home) -> None:
    registry, away = tiny_home.path / "registry.db", tiny_home.path / "away.db"
    registry.rename(away)
    with pytest.raises(ConflictError, match=r"server-1 was not stopped, as it would not come back: .*registry"):
        order(running.state, "restart", "server-1", force=True)
    away.rename(registry)
    running.folder.placement.write_text("{}")
    with pytest.raises(ConflictError, match=r"server-1 was not stopped, as it would not come back: .*placement\.json"):
        order(running.state, "restart", "server-1", force=False)
    assert running.first.state is MemberState.READY
    running.folder.placement.unlink()
    tiny_home.repository.rename(away)
    with pytest.raises(ConflictError, match=r"it would not come back: there is no model repository"):
        order(running.state, "restart", "server-1", force=False)
    away.rename(tiny_home.repository)
    assert order(running.state, "restart", "server-1", force=False) == []


def test_a_gateway_that_dies_while_servers_drain_is_replaced(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = running.first.stop

    def lose_gateway(on_poll: Callable[[], None] = lambda: None) -> Verdict:
        os.kill(int(str(running.state.gateway.pid)), signal.SIGKILL)
        wait_until(lambda: not running.fleet.front.is_running)
        return stop(on_poll)

    monkeypatch.setattr(running.first, "stop", lose_gateway)
    running.stop.requested = True
    wait_until(running.is_over)
    (ready,) = [place for place, line in enumerate(running.said) if line.startswith("the gateway is ready again")]
    assert ready < running.said.index("server-2: stopping")


def test_a_gateway_that_gets_never_ready_does_not_hold_up_a_fleet_that_is_to_stop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ready(on_poll: Callable[[], object]) -> None:
        while True:
            on_poll()
            time.sleep(0.01)

    def stop_in_a_while(member: StandInMember, on_poll: Callable[[], None] = lambda: None) -> Verdict:
        threading.Timer(0.2, setattr, (member, "state", MemberState.STOPPED)).start()
        on_poll()
        return Verdict(True, [])

    monkeypatch.setattr(running.fleet.front, "look_after", never_ready)
    for member in (running.first, running.second):
        monkeypatch.setattr(member, "stop", partial(stop_in_a_while, member))
    running.stop.requested = True
    wait_until(running.is_over)
    assert running.ended is None and running.said[-1] == "all servers have stopped"


def test_a_fleet_that_is_to_stop_does_not_wait_for_a_server_that_is_starting(running: Running) -> None:
    running.first.comes_back = MemberState.STARTING
    running.first.started.clear()
    with ThreadPoolExecutor(1) as other:
        restarting = other.submit(order, running.state, "restart", "server-1", force=False)
        assert running.first.started.wait(LIMIT_S)
        wait_until(lambda: running.state.is_ordering)
        with pytest.raises(BusyError, match="another server is being drained or started"):
            order(running.state, "drain", "server-2", force=False)
        running.stop.requested = True
        assert restarting.result(LIMIT_S) == ["server-1 is starting"]
        wait_until(running.is_over)
    assert running.ended is None and running.said[-1] == "all servers have stopped"


def test_a_fleet_that_is_to_stop_does_not_wait_for_the_gateway(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "_ROUTED_S", 2 * LIMIT_S)
    running.second.server.is_ready = False
    wait_until(lambda: not server_rows(running.state)[1]["in_gateway"])
    with ThreadPoolExecutor(1) as other:
        draining = other.submit(order, running.state, "drain", "server-1", force=False)
        wait_until(lambda: running.state.is_ordering)
        running.stop.requested = True
        with pytest.raises(ConflictError, match="the fleet is stopping"):
            draining.result(LIMIT_S)
