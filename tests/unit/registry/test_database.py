"""Registries that are locked, away, damaged, or of another kind: one clear line, and nothing half-written."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import struct
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text

from backends.errors import CorruptFileError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.home import REGISTRY_VARIABLE, Home
from backends.registry import database
from backends.registry.position import START
from backends.registry.registry import Registry
from small_disk import run_on_small_disk
from waiting import LIMIT_S


@pytest.fixture
def small(tmp_path: Path) -> Registry:
    registry = Registry.open(Home(tmp_path), create=True)
    registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    return registry


def test_reading_makes_no_home(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no home at"):
        Registry.open(Home(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "registry.db").touch()
    with pytest.raises(NotFoundError, match="is empty"):
        Registry.open(Home(tmp_path))
    assert (tmp_path / "registry.db").stat().st_size == 0


def test_what_is_asked_all_the_time_is_one_statement(small: Registry) -> None:
    statements: list[str] = []
    own = threading.get_ident()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if threading.get_ident() == own:  # servers of other tests may look at their registries meanwhile
            statements.append(statement)

    position = small.hplm_changes(START).position
    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert small.hplm_changes(position).position == position
        assert len(statements) == 1
        assert small.hplm_changes(START).position == position
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_a_server_that_asks_for_the_revision_does_not_wait(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        database.Database.connect(f"sqlite:///{tmp_path}/away/registry.db", 2 * LIMIT_S).is_at(START)
    assert time.monotonic() - start < LIMIT_S


def test_a_statement_that_computes_for_ever_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_STATEMENT_S", 0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    opened = database.Database.connect(f"sqlite:///{tmp_path}/registry.db")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="computed for more than"), opened.reading() as session:
        session.execute(text(endless))
    assert time.monotonic() - start < LIMIT_S
    with opened.reading() as session:  # the connection goes on
        assert session.scalar(text("SELECT 1")) == 1


class SilentPostgres:
    """A server that lets clients in, as PostgreSQL does, and then answers nothing; or not even that."""

    def __init__(self, greets: bool) -> None:
        self._greets = greets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://hplm@127.0.0.1:{self._listener.getsockname()[1]}/hplm?sslmode=disable&gssencmode=disable"

    def close(self) -> None:
        for held in (self._listener, *self._held):
            held.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._held.append(connection)
                if self._greets:
                    connection.recv(1024)
                    admitted, version, ready = struct.pack(">i", 0), b"server_version\x0015.0\x00", b"I"
                    parts = ((b"R", admitted), (b"S", version), (b"Z", ready))
                    connection.sendall(b"".join(kind + struct.pack(">i", 4 + len(it)) + it for kind, it in parts))


@pytest.mark.parametrize(("greets", "reason"), [(True, "not answered for 0.3 s"), (False, "timeout expired")])
def test_a_postgres_that_swallows_everything_is_given_up(greets: bool, reason: str) -> None:
    pytest.importorskip("psycopg")
    server = SilentPostgres(greets)
    opened = database.Database.connect(server.url, patience_s=0.3)
    start = time.monotonic()
    with pytest.raises(UnavailableError, match=reason):
        opened.is_at(START)
    assert time.monotonic() - start < LIMIT_S
    server.close()


def test_readers_do_not_wait_for_writers(small: Registry, tmp_path: Path) -> None:
    reader = Registry.open(Home(tmp_path))
    before = reader.revision
    holder = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")  # outside write-ahead mode it locks readers out
    holder.execute("UPDATE state SET revision = revision + 1")
    assert reader.revision == before
    holder.rollback()


def test_a_locked_registry_is_one_clear_line(small: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.4)
    impatient = Registry.open(Home(tmp_path))
    before = small.revision
    holder = sqlite3.connect(tmp_path / "registry.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="locked by another process") as caught:
        impatient.publish_domain("mini", "shop", "x", impatient.domain("mini", "general"), {})
    assert 0.3 < time.monotonic() - start < LIMIT_S
    assert "\n" not in str(caught.value)
    holder.rollback()
    assert small.revision == before
    assert not small.has_domain("mini", "shop")


def test_a_server_that_comes_up_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused connections are tried again with back-off; here nobody speaks PostgreSQL in the end."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr(database, "PATIENCE_S", LIMIT_S)
    monotonic = time.monotonic
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        knocks: list[int] = []

        def listen() -> None:
            time.sleep(0.5)
            listener.listen()
            for number in range(2):
                connection, _ = listener.accept()
                knocks.append(number)
                if number == 1:  # then the time is over
                    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 2 * LIMIT_S)
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        monkeypatch.setenv(REGISTRY_VARIABLE, f"postgresql://hplm@127.0.0.1:{port}/hplm")
        with pytest.raises(UnavailableError, match="cannot be reached") as caught:
            Registry.open(Home(tmp_path), create=True)
    assert len(knocks) == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", ["plots/mini", "bank/mini"])
def test_a_home_that_lost_its_registry_is_not_to_begin_anew(tmp_path: Path, folder: str) -> None:
    (tmp_path / "plots").mkdir()
    with pytest.raises(NotFoundError, match="is missing; 'hplm root add' makes one"):
        Registry.open(Home(tmp_path))
    (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(NotFoundError, match=r"lacks its registry, .*registry\.db; put it back from a backup"):
        Registry.open(Home(tmp_path))
    (tmp_path / "registry.db").touch()
    with pytest.raises(NotFoundError, match="is empty; put it back from a backup"):
        Registry.open(Home(tmp_path))


FILL = """
from pathlib import Path
from backends.errors import UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
home = Home(Path(sys.argv[1]))
registry = Registry.open(home, create=True)
registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {"words": "x" * 20_000})
for version in range(2, 99):
    try:
        registry.publish_domain("mini", "general", "x", registry.domain("mini", "general"), {"words": "x" * 20_000})
    except UnavailableError as error:
        print(error, file=sys.stderr)
        break
"""


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    told = run_on_small_disk(FILL, tmp_path / "disk", 512)
    assert told == "the disk of the registry is full; nothing was changed\n"


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    monkeypatch.setenv(REGISTRY_VARIABLE, f"sqlite:///{tmp_path}/no/such/folder/registry.db")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Registry.open(Home(tmp_path), create=True)


def test_a_file_that_each_process_would_look_for_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(REGISTRY_VARIABLE, "sqlite:///registry.db")
    with pytest.raises(InvalidArgumentError, match=r"'registry\.db' must be an absolute path"):
        Registry.open(Home(tmp_path), create=True)
    assert not (tmp_path / "registry.db").exists()


@pytest.mark.parametrize("url", ["nonsense", "oracle8://somewhere/x", "mysql+nope://u:secret@h/x"])
def test_urls_that_name_no_database(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, url)
    with pytest.raises(InvalidArgumentError) as caught:
        Registry.open(Home(tmp_path), create=True)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"no database" * 100)
    with pytest.raises(CorruptFileError, match="not a database"):
        Registry.open(Home(tmp_path))
