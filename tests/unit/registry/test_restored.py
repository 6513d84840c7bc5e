"""A registry that is restored, replaced or away under a running server: what is live there is served, soon."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from backends.errors import NotFoundError, UnauthorisedError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import Role
from bench.kit.scratch_postgres import ScratchPostgres
from waiting import wait_until


class Backup(Protocol):
    def save(self) -> None: ...

    def restore(self) -> None: ...

    def check(self) -> None:
        """Check that what was restored is whole."""


class SqliteBackup:
    def __init__(self, home: Path, put_back: Callable[[Path, Path], None]) -> None:
        self._database, self._saved = home / "registry.db", home / "backup.db"
        self._put_back = put_back

    def save(self) -> None:
        copied(self._database, self._saved)

    def restore(self) -> None:
        self._put_back(self._saved, self._database)

    def check(self) -> None:
        with closing(sqlite3.connect(self._database)) as found:
            assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


class PostgresBackup:
    def __init__(self, server: ScratchPostgres) -> None:
        self._server = server
        self._dump = ""

    def save(self) -> None:
        self._dump = self._server.dump()

    def restore(self) -> None:
        self._server.restore(self._dump)

    def check(self) -> None:
        assert "COPY public.hplm_versions" in self._server.dump()


def publish(registry: Registry, hplm: str) -> int:
    domain = registry.find_domain("mini", "general")
    return registry.publish_hplm(hplm, domain, "classification", ["a"], "bank/x", {}).key


def copied(database: Path, to: Path) -> None:
    """Copy a database while it is in use."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def other_file(backup: Path, database: Path) -> None:
    for name in ("registry.db-wal", "registry.db-shm"):
        database.with_name(name).unlink(missing_ok=True)
    shutil.copyfile(backup, database.with_name("restored.db"))
    database.with_name("restored.db").replace(database)


@pytest.fixture(params=["copied", "other file", "postgresql"])
def backup(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backup:
    if request.param != "postgresql":
        return SqliteBackup(tmp_path, copied if request.param == "copied" else other_file)
    server: ScratchPostgres = request.getfixturevalue("scratch_server")
    monkeypatch.delenv("HPLM_TEST_POSTGRES_URL", raising=False)  # this test dumps the server's own database
    request.getfixturevalue("registry_in_postgres")
    return PostgresBackup(server)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry.open(Home(tmp_path), create=True)
    registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    yield registry
    registry.close()


@pytest.fixture
def servers(registry: Registry, tmp_path: Path) -> Iterator[list[RegistrySnapshot]]:
    opened = [RegistrySnapshot.open(Home(tmp_path)) for _ in range(3)]
    yield opened
    for snapshot in opened:
        snapshot.close()


@pytest.mark.parametrize("published_after", [0, 3])
def test_an_older_registry_under_running_servers(
    backup: Backup,
    registry: Registry,
    servers: list[RegistrySnapshot],
    published_after: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = publish(registry, "acme/x")
    kept = registry.tokens.create("acme")
    registry.quotas.set("acme", {"weight": 2.0})
    backup.save()
    late = registry.tokens.create("acme")
    registry.quotas.set("acme", {"rows_per_s": 5.0})
    registry.quotas.set("globex", {"waiting_rows": 7, "weight": 3.0})
    new = publish(registry, "acme/x")
    publish(registry, "acme/late")
    wait_until(lambda: all(len(server.live()) == 2 for server in servers))
    backup.restore()
    for number in range(published_after):
        publish(registry, f"acme/y{number}")  # goes to the restored registry, also through a connection of before
    expected = {"acme/x", *(f"acme/y{number}" for number in range(published_after))}
    wait_until(lambda: all({entry.id for entry in server.live()} == expected for server in servers))
    for server in servers:
        assert server.find("acme/x").key == old
        assert server.by_key(new).version == 2  # rows in flight end on the version that they began with
        with pytest.raises(NotFoundError):
            server.find("acme/late")
        assert server.tokens.require(kept.text, Role.CALLER) == kept.entry
        with pytest.raises(UnauthorisedError):
            server.tokens.require(late.text, Role.CALLER)
        quotas = server.quotas
        assert (quotas.weights, quotas.waiting_rows, quotas.rates) == ({"acme": 2.0}, {}, {})
    assert caplog.text.count("the registry was restored or replaced") == 3
    backup.check()


def test_a_file_that_is_gone_for_a_while(
    registry: Registry, servers: list[RegistrySnapshot], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(registry, "acme/x")
    wait_until(lambda: all(server.live() for server in servers))
    copied(tmp_path / "registry.db", tmp_path / "backup.db")
    (tmp_path / "registry.db").unlink()
    wait_until(lambda: "its file is gone" in caplog.text)
    with pytest.raises(UnavailableError, match="its file is gone"):
        publish(registry, "acme/nowhere")
    assert not (tmp_path / "registry.db").exists(), "nobody makes an empty one"
    assert all(server.find("acme/x") for server in servers)
    other_file(tmp_path / "backup.db", tmp_path / "registry.db")
    publish(registry, "acme/y")
    wait_until(lambda: all(len(server.live()) == 2 for server in servers))
