"""A registry whose database file is damaged, or whose rows say what no release writes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from backends.home import Home
from backends.registry.snapshot import RegistrySnapshot
from bench.kit.fuzz.copied_home import copied_home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import any_value, bad_json
from bench.kit.fuzz.target import Target

_REGISTRY = "registry.db"
_COLUMNS = {
    "state": ("format_version", "revision"),
    "roots": ("name", "fingerprint", "folder", "deleted_at"),
    "domains": ("root_id", "name", "live_version", "deleted_at"),
    "domain_versions": ("domain_id", "version", "parent_id", "folder", "folders", "metrics"),
    "hplms": ("name", "live_version_id", "last_version", "pinned_id", "revision"),
    "hplm_versions": ("version", "domain_version_id", "task", "pair", "labels", "folder", "metrics"),
    "publications": ("revision", "mark"),
    "tokens": ("token_id", "scope", "role", "sha256", "not_before", "expires_at", "revision"),
    "quotas": ("tenant", "weight", "rows_per_s", "bytes_per_s", "waiting_rows", "hplms", "revision"),
}
_JSON = ("folders", "metrics", "labels")


class Registries(Target):
    """Bytes of the file, or values of its rows, are changed; then a server's snapshot is made of it."""

    name = "registries"
    cases = 3_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._own = copied_home(home, scratch)
        self._path = self._own.path / _REGISTRY
        with closing(RegistrySnapshot.open(self._own)):
            pass
        self._good = self._path.read_bytes()

    def attempt(self, draw: Draw) -> None:
        for path in self._own.path.glob(f"{_REGISTRY}*"):
            path.unlink(missing_ok=True)  # SQLite removes what it has written ahead, too
        if draw.happens(0.5):
            self._path.write_bytes(draw.damaged(self._good))
        else:
            self._path.write_bytes(self._good)
            self._change_values(draw)
        with closing(RegistrySnapshot.open(self._own)) as snapshot:
            for entry in snapshot.live():
                entry.stacks  # noqa: B018  it reads the metrics
                entry.likely_depth("auto")
                entry.default_deadline_us  # noqa: B018

    def _change_values(self, draw: Draw) -> None:
        with closing(sqlite3.connect(self._path)) as database:
            database.execute("PRAGMA foreign_keys = OFF")
            for _ in range(draw.choice((1, 1, 2, 4))):
                table = draw.choice(list(_COLUMNS))
                column = draw.choice(_COLUMNS[table])
                with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                    database.execute(f"UPDATE {table} SET {column} = ?", (self._value(draw, database, table, column),))
            database.commit()

    def _value(self, draw: Draw, database: sqlite3.Connection, table: str, column: str) -> object:
        if column not in _JSON:
            value = any_value(draw)
            return value if isinstance(value, int | float | str | None) else json.dumps(value)
        row = database.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
        return bad_json(draw, json.loads(row[0]) if row else [])
