"""Registries of every kind that there is a database for: `$HPLM_TEST_POSTGRES_URL` names an empty PostgreSQL one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.database import Database
from backends.registry.registry import Registry

POSTGRES_VARIABLE = "HPLM_TEST_POSTGRES_URL"


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home without a registry."""
    if request.param == "postgresql":
        monkeypatch.setenv(REGISTRY_VARIABLE, _empty_postgres())
    return Home(tmp_path / "home")


@pytest.fixture
def open_registry(home: Home) -> Iterator[Callable[[], Registry]]:
    """Opens the home's registry as one more process would."""
    opened: list[Registry] = []

    def open_it() -> Registry:
        opened.append(Registry.open(home, create=True))
        return opened[-1]

    yield open_it
    for registry in opened:
        registry.close()


@pytest.fixture
def registry(open_registry: Callable[[], Registry]) -> Registry:
    """One root with its own first domain."""
    registry = open_registry()
    registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    return registry


def _empty_postgres() -> str:
    url = os.environ.get(POSTGRES_VARIABLE)
    if not url:
        pytest.skip(f"{POSTGRES_VARIABLE} is not set")
    database = Database.connect(url)
    with database.engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()
    return url
