"""The registry of a home as its operator has it, and the faults that befall it under a running server.

Usage:
    with postgres_registry() as registry, tenant_home(...) as home:   # the home's registry is there from now on
        with served(home.home, Serving(environment=registry.environment)):
            registry.begin("silent", home.home)
            registry.end(home.home)
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import make_url

from backends.home import REGISTRY_VARIABLE, Home
from bench.kit.proxy import Proxy
from bench.kit.scratch_postgres import ScratchPostgres, scratch_postgres

RESTORED = "restored"
"""The fault that lasts: what `save` kept is what the registry holds from its beginning on."""
_DATABASE = "registry.db"
_AWAY = ".away"
_SUFFIXES = ("", "-wal", "-shm")
_SLOW_S = 5.0


class FailingRegistry(Protocol):
    @property
    def faults(self) -> Sequence[str]: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a server that meets the faults."""

    def save(self, home: Home) -> None:
        """Keep what it holds now."""

    def begin(self, fault: str, home: Home) -> None: ...

    def end(self, home: Home) -> None:
        """Be as before the fault."""


class SqliteRegistry:
    """A file: `away` is a file system that is gone."""

    faults = ("away", RESTORED)
    environment: Mapping[str, str] = {}

    def save(self, home: Home) -> None:
        with closing(sqlite3.connect(home.path / _DATABASE)) as source, closing(sqlite3.connect(_saved(home))) as to:
            source.backup(to)

    def begin(self, fault: str, home: Home) -> None:
        if fault == RESTORED:
            for suffix in _SUFFIXES[1:]:
                (home.path / f"{_DATABASE}{suffix}").unlink(missing_ok=True)
            shutil.copyfile(_saved(home), home.path / "restored.db")
            (home.path / "restored.db").replace(home.path / _DATABASE)
            return
        for path in _files(home):
            path.rename(path.with_name(path.name + _AWAY))

    def end(self, home: Home) -> None:
        for suffix in reversed(_SUFFIXES):
            away = home.path / f"{_DATABASE}{suffix}{_AWAY}"
            if away.exists():
                away.rename(away.with_name(away.name.removesuffix(_AWAY)))


class PostgresRegistry:
    """Behind a bad network: connections closed, bytes swallowed, answers after five seconds."""

    faults = ("away", "silent", "slow", RESTORED)

    def __init__(self, server: ScratchPostgres, proxy: Proxy) -> None:
        self._server = server
        self._proxy = proxy
        self._saved = ""

    @property
    def environment(self) -> Mapping[str, str]:
        url = make_url(self._server.url).set(port=self._proxy.port)
        return {REGISTRY_VARIABLE: url.render_as_string(hide_password=False)}

    def save(self, home: Home) -> None:
        self._saved = self._server.dump()

    def begin(self, fault: str, home: Home) -> None:
        if fault == RESTORED:
            self._server.restore(self._saved)
        self._proxy.closes, self._proxy.swallows = fault == "away", fault == "silent"
        self._proxy.delay_s = _SLOW_S if fault == "slow" else 0.0

    def end(self, home: Home) -> None:
        self._proxy.mend()


@contextmanager
def sqlite_registry() -> Iterator[FailingRegistry]:
    yield SqliteRegistry()


@contextmanager
def postgres_registry() -> Iterator[FailingRegistry]:
    """The registry of this process's homes for the length of the block; servers get it by way of the proxy."""
    with scratch_postgres() as server, Proxy("127.0.0.1", server.port) as proxy:
        os.environ[REGISTRY_VARIABLE] = server.url
        try:
            yield PostgresRegistry(server, proxy)
        finally:
            del os.environ[REGISTRY_VARIABLE]


def _files(home: Home) -> list[Path]:
    return [path for suffix in _SUFFIXES if (path := home.path / f"{_DATABASE}{suffix}").exists()]


def _saved(home: Home) -> Path:
    return home.path / "saved.db"
