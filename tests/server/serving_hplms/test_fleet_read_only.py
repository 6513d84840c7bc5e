"""`hplm fleet serve` on a read-only home, as its message advises: a folder of this machine, a registry elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backends.home import REGISTRY_VARIABLE, Home
from builder.fleet.fleet_folder import LOCAL_VARIABLE
from read_only import everything_in, mounted_read_only
from served_fleet import Load, export, fleet_of_two

pytestmark = [pytest.mark.server, pytest.mark.long]


def test_a_read_only_home_is_served(tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tiny_home)
    local, registry = tmp_path / "local", tmp_path / "registry"
    local.mkdir()
    registry.mkdir()
    (tiny_home.path / "registry.db").rename(registry / "registry.db")
    monkeypatch.setenv(LOCAL_VARIABLE, str(local))
    monkeypatch.setenv(REGISTRY_VARIABLE, f"sqlite:///{registry}/registry.db")
    (tiny_home.path / "stderr").touch()  # what the fleet says, which this test keeps there
    before = contents(tiny_home)
    with fleet_of_two(tiny_home, mounted_read_only(tiny_home.path)) as fleet:
        with Load(fleet.urls) as load:
            time.sleep(2)
            restarted = fleet.command("apply", "--restart")
            assert restarted.stdout == "restarted 2 of 2 servers\n", restarted.stderr
        assert load.outcomes.keys() == {"answered"}, f"{load.outcomes}\n{fleet.said()}"
        assert contents(tiny_home) == before
    assert [each.name.rpartition("-")[0] for each in local.iterdir()] == ["fleet"]


def contents(home: Home) -> dict[Path, tuple[int, int]]:
    return {path: found for path, found in everything_in(home.path).items() if path.name != "stderr"}
