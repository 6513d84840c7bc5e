"""`hplm fleet apply`: what is restarted and in which order, what an interrupted one leaves, and what it rejects."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backends.errors import ConflictError, CorruptFileError, NotFoundError, UnavailableError
from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet import apply as apply_module
from builder.fleet.apply import FleetApply
from builder.fleet.apply_journal import ApplyJournal
from builder.fleet.errors import NoFleetError
from builder.fleet.fleet_placement import FleetPlacement
from builder.fleet.started_with import export_checksum
from builder.serving.errors import BusyError
from stand_in_fleet import StandInFleet
from waiting import LIMIT_S

ALL = ["server-1", "server-2", "server-3"]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "_POLL_S", 0.005)
    monkeypatch.setattr(apply_module, "_PATIENCE_S", 0.1)


@pytest.fixture
def fleet(tiny_home: Home) -> Iterator[StandInFleet]:
    render_repository(tiny_home.repository, ExportSettings())
    with StandInFleet(tiny_home, 3) as fleet:
        yield fleet


def export_anew(home: Home, policy: str = "das") -> None:
    render_repository(home.repository, ExportSettings(upper_parameters={"policy": policy}))


def applied(
    home: Home, placement: FleetPlacement | None = None, *, restart: bool = False, force: bool = False
) -> tuple[list[str], list[str]]:
    """Return which servers were restarted, and what was reported."""
    said: list[str] = []
    work = FleetApply(home, said.append)
    with work.begun(placement, restart=restart):
        return work.run(force=force), said


def test_what_is_as_wanted_is_left_alone(tiny_home: Home, fleet: StandInFleet) -> None:
    assert applied(tiny_home) == ([], [])
    assert fleet.restarted == []


def test_a_new_export_restarts_each_server_once(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    steps = FleetApply(tiny_home, print).steps()
    assert [step.server for step in steps] == ALL and all("export" in step.reasons[0] for step in steps)
    assert fleet.restarted == [], "to look changes nothing"
    restarted, said = applied(tiny_home)
    assert restarted == fleet.restarted == ALL
    assert "server-1: restarting (export" in said[0] and "server-1: ready again" in said[1]
    assert applied(tiny_home)[0] == []


def test_the_same_export_again_is_no_change(tiny_home: Home, fleet: StandInFleet) -> None:
    before = export_checksum(tiny_home.repository)
    render_repository(tiny_home.repository, ExportSettings())
    assert export_checksum(tiny_home.repository) == before
    assert applied(tiny_home)[0] == []


def test_a_new_release_is_a_rolling_upgrade(
    tiny_home: Home, fleet: StandInFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.fleet.started_with.installed_release", lambda: "99.1")
    restarted, said = applied(tiny_home)
    assert restarted == ALL and "→ 99.1" in said[0]


def test_new_code_of_the_same_version_is_a_rolling_upgrade(
    tiny_home: Home, fleet: StandInFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "wire.py").write_text("LIMIT = 2\n")
    monkeypatch.setattr("builder.fleet.started_with._INSTALLED_IN", tmp_path)
    restarted, said = applied(tiny_home)
    assert restarted == ALL
    assert re.search(r"release (\S+) \([0-9a-f]{8}\) → \1 \([0-9a-f]{8}\)", said[0])
    assert applied(tiny_home)[0] == []


def test_while_a_release_is_being_replaced_nothing_is_restarted(
    tiny_home: Home, fleet: StandInFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.fleet.started_with._DISTRIBUTION", "hplm-that-nobody-installs")
    with pytest.raises(UnavailableError, match="is being upgraded; try again later"):
        applied(tiny_home)
    assert fleet.restarted == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_killed_apply_goes_on_where_it_stopped(
    tiny_home: Home, fleet: StandInFleet, restart: bool, done: int
) -> None:
    if not restart:
        export_anew(tiny_home)

    def die(name: str) -> None:
        if len(fleet.restarted) == done:
            raise ConnectionResetError(name)

    fleet.before_restart = die
    with pytest.raises(UnavailableError, match="run hplm fleet apply again"):
        applied(tiny_home, restart=restart)
    fleet.before_restart = lambda _: None
    assert fleet.folder.journal.exists()
    restarted, said = applied(tiny_home)
    assert restarted == ALL[done:] and fleet.restarted == ALL
    assert said[0] == "going on with an apply that did not finish"
    assert not fleet.folder.journal.exists()
    assert applied(tiny_home)[0] == []


def test_a_server_that_the_fleet_was_restarting_is_waited_for(tiny_home: Home, fleet: StandInFleet) -> None:
    fleet.set("server-2", "draining")
    fleet.folder.journal.write_text("{}")
    with pytest.raises(CorruptFileError):
        applied(tiny_home)
    fleet.folder.journal.unlink()
    fleet.order_limit_s = 0.05
    fleet.write()
    with pytest.raises(UnavailableError, match="not done with another order: server-2 is draining"):
        applied(tiny_home)
    assert fleet.restarted == []


def test_a_damaged_journal_keeps_a_placement_from_being_written(tiny_home: Home, fleet: StandInFleet) -> None:
    fleet.folder.journal.write_text("{}")
    with pytest.raises(CorruptFileError, match=r"apply\.json"):
        applied(tiny_home, FleetPlacement({"server-1": ()}))
    assert not fleet.folder.placement.exists() and fleet.restarted == []


def test_two_applies_at_once_are_rejected(tiny_home: Home, fleet: StandInFleet) -> None:
    with (
        FleetApply(tiny_home, print).begun(None, restart=True),
        pytest.raises(ConflictError, match="another hplm fleet apply is at work"),
    ):
        applied(tiny_home)
    assert fleet.restarted == []


def test_from_another_machine_nothing_is_written(
    tiny_home: Home, fleet: StandInFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.fleet.control.socket.gethostname", lambda: "elsewhere")
    with pytest.raises(UnavailableError, match="takes orders only there; this is elsewhere"):
        applied(tiny_home, FleetPlacement({"server-1": ()}), restart=True)
    assert not fleet.folder.placement.exists() and not fleet.folder.journal.exists()


def test_the_last_server_is_restarted_by_force_only(tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    with StandInFleet(tiny_home, 1) as fleet:
        export_anew(tiny_home)
        with pytest.raises(ConflictError, match="server-1 is the last server that is ready; --force"):
            applied(tiny_home)
        assert fleet.restarted == []
        assert applied(tiny_home, force=True)[0] == ["server-1"]


def test_a_server_stays_up_while_no_other_one_is_ready(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    for name in ("server-2", "server-3"):
        fleet.entries[name] = replace(fleet.entries[name], export=export_checksum(tiny_home.repository))
        fleet.set(name, "not ready")
    with pytest.raises(ConflictError, match="server-1 is the last server that is ready"):
        applied(tiny_home)
    assert fleet.restarted == []


def test_a_server_that_does_not_come_back_ends_it_and_is_the_first_to_be_mended(
    tiny_home: Home, fleet: StandInFleet
) -> None:
    export_anew(tiny_home)
    fleet.failing = {"server-2"}
    with pytest.raises(
        UnavailableError,
        match=r"server-2 did not come back, and the others go on: it ran out of luck; .* drain server-2",
    ):
        applied(tiny_home)
    assert fleet.restarted == ["server-1", "server-2"]
    assert fleet.entries["server-3"].state == "ready"
    fleet.failing = set()
    assert applied(tiny_home)[0] == ["server-2", "server-3"]


def test_without_the_registry_no_server_is_stopped(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    registry, away = tiny_home.path / "registry.db", tiny_home.path / "away.db"

    def lose_registry(name: str) -> None:
        if name == "server-1":
            registry.rename(away)

    fleet.before_restart = lose_registry
    with pytest.raises(UnavailableError, match=r"the registry is away, so server-2 was not stopped: .*again"):
        applied(tiny_home)
    assert fleet.restarted == ["server-1"]
    away.rename(registry)
    assert applied(tiny_home)[0] == ["server-2", "server-3"]


def test_a_drained_server_stays_stopped(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    fleet.set("server-2", "stopped")
    restarted, said = applied(tiny_home)
    assert restarted == ["server-1", "server-3"]
    assert said[0].startswith("server-2 was drained and stays stopped")


def test_an_export_that_comes_meanwhile_is_applied_too(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)

    def export_once_more(name: str) -> None:
        if fleet.restarted == ["server-1"]:
            export_anew(tiny_home, "slotted-das")

    fleet.before_restart = export_once_more
    assert sorted(applied(tiny_home)[0]) == ALL
    assert {each.export for each in fleet.entries.values()} == {export_checksum(tiny_home.repository)}


def test_what_restarts_do_not_cure_ends_it(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    old = fleet.entries["server-1"].export
    write = fleet.write

    def with_old_export() -> None:
        fleet.entries["server-1"] = replace(fleet.entries["server-1"], export=old)
        write()

    fleet.write = with_old_export  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="server-1 was restarted, and still: export"):
        applied(tiny_home)


def test_a_placement_restarts_only_who_holds_something_else(tiny_home: Home, fleet: StandInFleet) -> None:
    placed = FleetPlacement({"server-1": ("tiny",), "server-3": ("twin", "tiny")})
    restarted, said = applied(tiny_home, placed)
    assert restarted == ["server-1", "server-3"]
    assert said[0] == "server-1: restarting (roots all → tiny)"
    assert [fleet.entries[name].roots for name in ALL] == [("tiny",), None, ("twin", "tiny")]
    assert applied(tiny_home)[0] == [], "the placement stays without being named again"
    assert applied(tiny_home, FleetPlacement())[0] == ["server-1", "server-3"]
    assert {each.roots for each in fleet.entries.values()} == {None}


def test_servers_are_restarted_in_the_order_of_the_plan_s_steps(tiny_home: Home, fleet: StandInFleet) -> None:
    roots = dict.fromkeys(ALL, ("tiny",))
    fleet.set("server-1", "not ready")
    placed = FleetPlacement(roots, ("server-3", "server-1", "server-2"))

    def die(name: str) -> None:
        if name == "server-2":
            raise ConnectionResetError(name)

    fleet.before_restart = die
    with pytest.raises(UnavailableError):
        applied(tiny_home, placed)
    assert fleet.restarted == ["server-1", "server-3"], "what answers nothing comes first"
    fleet.before_restart = lambda _: None
    export_anew(tiny_home)
    assert applied(tiny_home)[0] == ["server-3", "server-1", "server-2"], "the order is kept for the next apply"


def test_an_order_at_work_is_waited_for(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    fleet.is_ordering, fleet.order_limit_s = True, 0.05
    fleet.set("server-2", "stopped")
    with pytest.raises(UnavailableError, match="the fleet is not done with another order"):
        applied(tiny_home)
    assert fleet.restarted == []
    fleet.order_limit_s = LIMIT_S
    fleet.write()
    timer = threading.Timer(0.2, finish, [fleet])
    timer.start()
    assert applied(tiny_home)[0] == ALL, "a server between its end and its start is no drained one"
    timer.join()


def test_an_order_that_comes_first_is_waited_for(tiny_home: Home, fleet: StandInFleet) -> None:
    export_anew(tiny_home)
    busy = iter([True, True, False, False, False])

    def be_busy(name: str) -> None:
        if next(busy):
            raise BusyError("another server is being drained or started; one at a time")

    fleet.before_restart = be_busy
    restarted, said = applied(tiny_home)
    assert restarted == ALL and said.count("server-1: not yet, as another order is at work") == 2


def test_a_restart_of_all_leaves_one_that_was_drained(tiny_home: Home, fleet: StandInFleet) -> None:
    fleet.entries["server-2"] = replace(fleet.entries["server-2"], state="stopped", pid=None)
    fleet.write()
    assert applied(tiny_home, restart=True)[0] == ["server-1", "server-3"]


def test_what_an_old_apply_has_left_does_not_stop_a_restart(tiny_home: Home, fleet: StandInFleet) -> None:
    ApplyJournal({"server-1": 7, "server-2": 8}).write(fleet.folder.journal)
    assert applied(tiny_home, restart=True)[0] == ALL
    assert not fleet.folder.journal.exists()


def finish(fleet: StandInFleet) -> None:
    fleet.is_ordering = False
    fleet.set("server-2", "ready")


def test_a_fleet_that_ends_with_its_only_server_says_why(tiny_home: Home) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    with StandInFleet(tiny_home, 1) as fleet:
        export_anew(tiny_home)
        fleet.failing = {"server-1"}
        fleet.before_restart = lambda _: fleet.end()
        with pytest.raises(UnavailableError, match="did not come back, and the fleet has ended: server-1 is failed"):
            applied(tiny_home, force=True)


def test_without_a_fleet_or_an_export_there_is_nothing_to_apply(tiny_home: Home) -> None:
    with pytest.raises(NoFleetError, match="no fleet runs on"):
        applied(tiny_home)
    assert not list((tiny_home.run / "fleet").glob("*.json"))
    with pytest.raises(NotFoundError, match="there is no model repository at"):
        export_checksum(tiny_home.path / "none")


def test_a_damaged_placement_is_named(tiny_home: Home, fleet: StandInFleet) -> None:
    fleet.folder.placement.write_text('{"servers": {"server-1": 3}}')
    with pytest.raises(CorruptFileError, match=r"placement\.json"):
        applied(tiny_home)


def test_compiled_files_of_a_repository_do_not_count(tiny_home: Home, fleet: StandInFleet) -> None:
    before = export_checksum(tiny_home.repository)
    compiled = tiny_home.repository / "hplm_upper" / "1" / "__pycache__" / "model.pyc"
    compiled.parent.mkdir()
    Path(compiled).write_bytes(b"x")
    assert export_checksum(tiny_home.repository) == before
