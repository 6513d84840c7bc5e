"""A home that cannot be written: `hplm fleet` and `hplm place` name the path and what to do, and change nothing."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.registry import Registry
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import CostProfile, Measured, write_profile
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.fleet.fleet_folder import LOCAL_VARIABLE
from read_only import REASONS, Kind, everything_in, run_read_only
from stand_in_fleet import StandInFleet

FREE_PORTS = ("--http", "0", "--grpc", "0", "--health-port", "0", "--first-port", "0")
DEVICES = ("--devices", "2x2GB", "--deadlines", "200ms")

pytestmark = pytest.mark.parametrize("kind", list(REASONS))


@pytest.fixture
def away(tiny_home: Home, tmp_path: Path) -> str:
    """Keep the registry beside the home, as one in PostgreSQL is; the URL of it."""
    (tmp_path / "registry").mkdir()
    moved = (tiny_home.path / "registry.db").rename(tmp_path / "registry" / "registry.db")
    return f"sqlite:///{moved}"


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "monday.csv"
    path.write_text("\n".join(["time_s,hplm", *(f"{number / 10},acme/topic" for number in range(200))]))
    return path


def rejected(done: subprocess.CompletedProcess[str], message: str, code: int = 1) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines() == [f"hplm: {message}"]


def test_a_fleet_is_not_started(kind: Kind, tiny_home: Home, away: str, tmp_path: Path) -> None:
    command = ("fleet", "serve", "--home", tiny_home.path, *FREE_PORTS)
    done = run_read_only(kind, tiny_home.path, *command, HPLM_REGISTRY_URL=away)
    rejected(done, f"{tiny_home.repository} {REASONS[kind]}, or export it where it can be written")
    render_repository(tiny_home.repository, ExportSettings())
    before = everything_in(tiny_home.path)
    done = run_read_only(kind, tiny_home.path, *command, HPLM_REGISTRY_URL=away)
    fleet = tiny_home.run / "fleet"
    rejected(done, f"{fleet} {REASONS[kind]}, or name a folder of this machine with {LOCAL_VARIABLE}")
    assert everything_in(tiny_home.path) == before


def test_nothing_is_applied_to_a_fleet(kind: Kind, tiny_home: Home, away: str) -> None:
    render_repository(tiny_home.repository, ExportSettings())
    command = ("fleet", "apply", "--home", tiny_home.path, "--everywhere", "--restart")
    done = run_read_only(kind, tiny_home.path, *command, HPLM_REGISTRY_URL=away)
    rejected(done, f"no fleet runs on {tiny_home.path}; hplm fleet serve starts one", code=3)
    with StandInFleet(tiny_home, 2) as fleet:
        before = everything_in(tiny_home.path)
        done = run_read_only(kind, tiny_home.path, *command, HPLM_REGISTRY_URL=away)
        # Whether a fleet runs is asked first, then whether another apply does; each by a lock.
        lock = fleet.folder.path / (".lock" if kind == "mounted read-only" else ".apply.lock")
        rejected(done, f"{lock} {REASONS[kind]}")
        assert everything_in(tiny_home.path) == before and fleet.restarted == []


def test_no_plan_is_written(
    kind: Kind, tiny_home: Home, away: str, traffic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(REGISTRY_VARIABLE, away)
        with closing(Registry.open(tiny_home)) as registry:
            measured = Measured(registry.root("tiny").fingerprint, "H200", "bf16", "ragged", 2)
    cost_model = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)
    write_profile(tiny_home.profile("tiny"), CostProfile(cost_model, measured, "2", 100, 5.0))
    before = everything_in(tiny_home.path)
    command = ("place", "--home", tiny_home.path, "--traffic", traffic, *DEVICES)
    done = run_read_only(kind, tiny_home.path, *command, HPLM_REGISTRY_URL=away)
    rejected(done, f"{tiny_home.placement.parent} {REASONS[kind]}, or see the plan without writing it by --dry-run")
    shown = run_read_only(kind, tiny_home.path, *command, "--dry-run", HPLM_REGISTRY_URL=away)
    assert shown.returncode == 0 and shown.stdout.startswith("all everywhere"), shown.stderr
    assert everything_in(tiny_home.path) == before


@pytest.mark.parametrize(
    "command",
    [("fleet", "serve", *FREE_PORTS), ("place", "--traffic", "monday.csv", *DEVICES)],
    ids=["fleet serve", "place"],
)
def test_a_registry_that_has_to_be_written_is_named(kind: Kind, tiny_home: Home, command: tuple[str, ...]) -> None:
    """SQLite's write-ahead mode makes files beside the registry, also to read it."""
    render_repository(tiny_home.repository, ExportSettings())
    before = everything_in(tiny_home.path)
    done = run_read_only(kind, tiny_home.path, *command, "--home", tiny_home.path)
    path = tiny_home.path / "registry.db" if kind == "mounted read-only" else tiny_home.path
    reason = REASONS[kind].partition(": ")[2].partition(";")[0]
    rejected(
        done,
        f"the registry cannot be reached: SQLite has to write {path} to read it, and cannot ({reason}); make it "
        "writable, or keep the registry in PostgreSQL",
        code=5,
    )
    assert everything_in(tiny_home.path) == before
