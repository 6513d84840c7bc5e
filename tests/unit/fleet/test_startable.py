"""What is looked at before a server is stopped that is to be started again."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from backends.errors import ConflictError
from backends.home import Home
from backends.registry.schema import REGISTRY_FORMAT_VERSION
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet.settings import FleetSettings
from builder.fleet.startable import require_startable
from builder.fleet.started_with import installed_release


@pytest.fixture
def home(tiny_home: Home) -> Home:
    render_repository(tiny_home.repository, ExportSettings())
    return tiny_home


def check(home: Home, release: str | None = None) -> None:
    require_startable(home, FleetSettings(), "server-2", installed_release() if release is None else release)


@pytest.mark.parametrize("model", ["hplm_lower", "hplm_upper"])
def test_a_damaged_configuration_is_found(home: Home, model: str) -> None:
    check(home)
    (home.repository / model / "config.pbtxt").write_text("name: {")
    with pytest.raises(ConflictError, match=rf"server-2 was not stopped, as it would not come back: .*{model}/config"):
        check(home)


def test_a_registry_that_an_upgrade_has_changed_is_for_new_servers(home: Home) -> None:
    with closing(sqlite3.connect(home.path / "registry.db")) as database, database:
        database.execute(f"UPDATE state SET format_version = {REGISTRY_FORMAT_VERSION + 1}")
    with pytest.raises(ConflictError, match="was written by a newer release"):
        check(home)
    for release in ("0.0.9 (0a1b2c3d)", ""):
        check(home, release)
