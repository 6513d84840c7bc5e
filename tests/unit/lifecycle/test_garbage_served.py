"""Several servers on one home: what any of them may still serve is not removed, and what none may is."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from backends.home import Home
from backends.process_id import ProcessId
from backends.registry.position import START, Position
from backends.registry.position_report import PositionReport
from backends.registry.registry import Registry
from backends.registry.servers import TOLD_EVERY_S, ServerEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.staleness import StalenessSettings
from builder.lifecycle.garbage import GarbageSettings, collect_garbage

AT_ONCE = GarbageSettings(keep=0, grace_s=0, unfinished_s=0)
NEVER_S = 3600.0


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "postgresql":
        request.getfixturevalue("registry_in_postgres")
    return Home(tmp_path)


@pytest.fixture
def registry(home: Home) -> Iterator[Registry]:
    registry = Registry.open(home, create=True)
    root, plot = written(home, home.root("mini")), written(home, home.plot("mini", "general", 1))
    registry.publish_root("mini", "f00d", root, "general", plot, {})
    yield registry
    registry.close()


@pytest.fixture
def open_server(home: Home) -> Iterator[Callable[..., RegistrySnapshot]]:
    """Opens a server's view, which is brought up to date by hand and tells its position at once."""
    opened: list[RegistrySnapshot] = []

    def open_it(name: str, kept_s: float = 0.0, staleness: StalenessSettings = StalenessSettings()) -> RegistrySnapshot:
        opened.append(RegistrySnapshot(Registry.open(home), kept_s, NEVER_S, staleness, name))
        return opened[-1]

    yield open_it
    for snapshot in opened:
        snapshot.close()


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.registry.position_report._TOLD_ANEW_S", 0.0)


def written(home: Home, folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "content").write_bytes(b"x" * 10)
    return home.relative(folder)


def publish(home: Home, registry: Registry, hplm: str, domain: str = "general") -> str:
    folder = written(home, home.bank("mini", hplm, registry.next_hplm_version(hplm)))
    registry.publish_hplm(hplm, registry.find_domain("mini", domain), "classification", ["a"], folder, {})
    return folder


def publish_domain(home: Home, registry: Registry, name: str) -> str:
    folder = written(home, home.plot("mini", name, registry.next_domain_version("mini", name)))
    registry.publish_domain("mini", name, folder, registry.domain("mini", "general"), {})
    return folder


def refresh(server: RegistrySnapshot) -> None:
    server.refresh()
    server._note_position()


def removed(home: Home, registry: Registry, settings: GarbageSettings = AT_ONCE) -> set[str | None]:
    return {removal.folder for removal in collect_garbage(home, registry, settings).removed}


def test_of_two_servers_the_older_view_counts(
    home: Home, registry: Registry, open_server: Callable[..., RegistrySnapshot]
) -> None:
    first = publish(home, registry, "acme/x")
    old, new = open_server("old"), open_server("new")
    second = publish(home, registry, "acme/x")
    refresh(new)
    third = publish(home, registry, "acme/x")
    refresh(new)
    report = collect_garbage(home, registry, AT_ONCE)
    assert report.removed == () and report.served == ("acme/x@1", "acme/x@2")
    assert [server.name.rpartition("/")[2] for server in report.servers] == ["old"]
    assert old.find("acme/x").folder == first and (home.path / first / "content").exists()
    refresh(old)
    assert removed(home, registry) == {first, second} and (home.path / third).exists()


def test_a_domain_stays_for_a_server_that_has_not_heard_of_the_next(
    home: Home, registry: Registry, open_server: Callable[..., RegistrySnapshot]
) -> None:
    tables = [publish_domain(home, registry, "shop")]
    adapters = publish(home, registry, "acme/x", "shop")
    server = open_server("server")
    tables.append(publish_domain(home, registry, "shop"))
    publish(home, registry, "acme/x", "shop")
    assert removed(home, registry) == set()
    assert all((home.path / folder / "content").exists() for folder in server.live_folders())
    refresh(server)
    assert removed(home, registry) == {adapters, tables[0]}


def test_what_was_left_a_moment_ago_counts_for_as_long_as_a_server_remembers_it(
    home: Home, registry: Registry, open_server: Callable[..., RegistrySnapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = publish(home, registry, "acme/x")
    server = open_server("server", kept_s=100.0)
    publish(home, registry, "acme/x")
    refresh(server)
    assert server.by_key(next(iter(server._retired_at))).folder == first
    assert removed(home, registry) == set()
    left = server._report._left  # type: ignore[union-attr]
    left[0] = (left[0][0] - 100.0, left[0][1])
    refresh(server)
    assert removed(home, registry) == {first}


def test_what_is_live_until_the_next_domain_is_prepared_stays(
    home: Home, registry: Registry, open_server: Callable[..., RegistrySnapshot]
) -> None:
    adapters = publish(home, registry, "acme/x")
    server = open_server("server")
    server.prepare_with(lambda domain: None)
    publish_domain(home, registry, "shop")
    publish(home, registry, "acme/x", "shop")
    publish(home, registry, "globex/y")
    server._read()  # as its thread does; another one is to prepare the domain
    server._note_position()
    assert (server.find("acme/x").version, server.find("globex/y").version) == (1, 1)
    assert removed(home, registry) == set()
    refresh(server)
    assert server.find("acme/x").version == 2
    assert removed(home, registry) == {adapters}


def test_what_is_live_because_the_next_one_is_damaged_stays(
    home: Home, registry: Registry, open_server: Callable[..., RegistrySnapshot]
) -> None:
    folders = [publish(home, registry, "acme/x")]
    server = open_server("server")
    folders.append(publish(home, registry, "acme/x"))
    publish(home, registry, "globex/y")
    with registry._database.reading() as session:
        session.execute(text("UPDATE hplm_versions SET labels = '3' WHERE version = 2"))
    refresh(server)
    assert (server.find("acme/x").version, server.find("globex/y").version) == (1, 1)
    assert removed(home, registry) == set()
    publish(home, registry, "acme/x")
    refresh(server)
    assert removed(home, registry) == set(folders)


def test_a_server_that_starts_keeps_everything(home: Home, registry: Registry) -> None:
    first = publish(home, registry, "acme/x")
    publish(home, registry, "acme/x")
    report = PositionReport(registry.servers, "starting", NEVER_S, 0.0)
    report.begin()
    assert removed(home, registry) == set()
    report.end()
    assert removed(home, registry) == {first}


def test_a_server_that_was_killed_keeps_nothing(home: Home, registry: Registry) -> None:
    folders = {publish(home, registry, "acme/x") for _ in range(2)}
    live = publish(home, registry, "acme/x")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        registry.servers.tell(server_entry(process=ProcessId.of(process.pid)))
        assert removed(home, registry) == set()
        process.kill()
    assert removed(home, registry) == folders and (home.path / live).exists()
    assert registry.servers.all() == [], "a collection forgets it"


def test_a_server_elsewhere_keeps_its_versions_until_it_was_silent_for_too_long(home: Home, registry: Registry) -> None:
    folders = {publish(home, registry, "acme/x") for _ in range(2)}
    publish(home, registry, "acme/x")
    elsewhere = ProcessId("another machine", 1, 1)
    registry.servers.tell(server_entry(elsewhere, silent_s=500.0, serves_for_s=1000.0))
    assert removed(home, registry, replace(AT_ONCE, silence_s=600.0)) == set()
    registry.servers.tell(server_entry(elsewhere, silent_s=1000.0 + TOLD_EVERY_S - 5, serves_for_s=1000.0))
    assert removed(home, registry) == set()
    assert removed(home, registry, replace(AT_ONCE, silence_s=600.0)) == folders


def test_a_server_is_forgotten_when_its_own_time_is_over(home: Home, registry: Registry) -> None:
    first = publish(home, registry, "acme/x")
    publish(home, registry, "acme/x")
    elsewhere = ProcessId("another machine", 1, 1)
    registry.servers.tell(server_entry(elsewhere, silent_s=1000.0 + TOLD_EVERY_S + 5, serves_for_s=1000.0))
    assert removed(home, registry) == {first}


def test_a_server_on_another_history_keeps_everything(home: Home, registry: Registry) -> None:
    """It has read more than there is: the registry was restored, and nothing is known of what it serves."""
    first = publish(home, registry, "acme/x")
    publish(home, registry, "acme/x")
    now = registry.hplm_changes(START).position
    registry.servers.tell(server_entry(position=now._replace(mark=1 + (now.mark or 0))))
    assert removed(home, registry) == set()
    registry.servers.tell(server_entry(position=now))
    assert removed(home, registry) == {first}


def test_a_registry_that_cannot_be_written_to_is_read_all_the_same(
    home: Home,
    registry: Registry,
    open_server: Callable[..., RegistrySnapshot],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.registry.database.PATIENCE_S", 0.1)
    with registry._database.reading() as session:
        session.execute(text("ALTER TABLE servers RENAME TO away"))
    publish(home, registry, "acme/x")
    server = open_server("server")
    publish(home, registry, "acme/x")
    for _ in range(3):
        refresh(server)
    assert server.find("acme/x").version == 2
    assert caplog.text.count("the registry cannot be told what this server serves") == 1


def test_whatever_happens_what_a_server_knows_is_on_disk(
    home: Home, registry: Registry, open_server: Callable[..., RegistrySnapshot], seed: int
) -> None:
    rng = random.Random(seed)
    publish_domain(home, registry, "shop")
    servers = [open_server(f"server-{number}") for number in range(3)]
    hplms = ["acme/x", "acme/y", "globex/z"]
    for _ in range(60):
        hplm, chance = rng.choice(hplms), rng.random()
        if chance < 0.45:
            publish(home, registry, hplm, rng.choice(["general", "shop"]))
        elif chance < 0.55:
            publish_domain(home, registry, "shop")
        elif chance < 0.6 and registry.has_hplm(hplm):
            registry.delete_hplm(hplm)
        elif chance < 0.65 and registry.has_hplm(hplm) and len(versions := registry.hplm_versions(hplm)) > 1:
            registry.rollback_hplm(hplm, rng.choice([version.entry.version for version in versions[:-1]]))
        elif chance < 0.85:
            refresh(rng.choice(servers))
        else:
            removed(home, registry)
            for server in servers:
                read = {entry.folder for entry in server.live()} | server.live_folders()
                assert all((home.path / folder / "content").exists() for folder in read)
    for server in servers:
        refresh(server)
    removed(home, registry)
    needed = {entry.folder for entry in registry.hplms()}
    assert {home.relative(path) for path in home.path.glob("bank/*/*")} == needed


def server_entry(
    process: ProcessId | None = None,
    position: Position = START,
    silent_s: float = 0.0,
    serves_for_s: float = NEVER_S,
) -> ServerEntry:
    seen_at = time.time() - silent_s
    return ServerEntry(7, "host/hplm_lower_0_0", process or ProcessId.own(), position, seen_at, serves_for_s)
