"""What `hplm gc` leaves to builds that run, and what they may begin with."""

from __future__ import annotations

import threading

import pytest
from folder_home import AT_ONCE, add_domain, removed

from backends.errors import NotFoundError
from backends.home import Home
from backends.registry.garbage import Garbage, KeepRule
from backends.registry.registry import Registry
from backends.storage import staging_folder
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.locks import LOGGER, exclusive, no_build_begins, not_built


@pytest.mark.parametrize(
    ("name", "held"),
    [
        (".big.checkpoint.0a1b2c3d.new", "big"),
        ("mini.mlm_head.safetensors.0a1b2c3d.new", "mini.mlm_head.safetensors"),
    ],
)
def test_a_half_written_file_stays_while_its_build_runs(home: Home, registry: Registry, name: str, held: str) -> None:
    (home.path / "roots" / name).write_bytes(b"1")
    with exclusive(home, home.root(held), "its build"):
        assert removed(home, registry) == set()
    assert removed(home, registry) == {f"roots/{name}"}


@pytest.mark.parametrize("held", ["plots/mini/shop@1", "plots/mini/shop", "roots/mini"])
def test_what_a_running_build_holds_stays(home: Home, registry: Registry, held: str) -> None:
    staging_folder(home.plot("mini", "shop", 1)).mkdir()
    with exclusive(home, home.path / held, "somebody's build"):
        report = collect_garbage(home, registry, AT_ONCE)
        assert (report.removed, report.in_use) == ((), ("plots/mini/.shop@1.building",))
    assert removed(home, registry) == {"plots/mini/.shop@1.building"}


def test_a_running_build_keeps_what_it_reads(home: Home, registry: Registry) -> None:
    add_domain(home, registry, "shop")
    add_domain(home, registry, "shoes", "shop")  # on shop@1
    for _ in range(3):
        add_domain(home, registry, "shop")
        add_domain(home, registry, "shoes", "shop")
    settings = GarbageSettings(keep=0, grace_s=0)
    with exclusive(home, home.path / "bank/acme--x", "hPLM 'acme/x'") as hold:
        hold.will_read(registry.domain("mini", "shoes", 1).folders)
        report = collect_garbage(home, registry, settings)
        assert not report.domains_kept
        assert {removal.name for removal in report.removed} == {"shoes@2", "shoes@3", "shop@2", "shop@3"}
    assert removed(home, registry, settings) == {"plots/mini/shoes@1", "plots/mini/shop@1"}


def test_a_killed_build_keeps_nothing(home: Home, registry: Registry) -> None:
    for _ in range(2):
        add_domain(home, registry, "shop")
    lock = home.path / "bank/.acme--x.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text('["plots/mini/shop@1"]')
    with exclusive(home, home.path / "bank/acme--x", "hPLM 'acme/x'"):
        assert collect_garbage(home, registry, GarbageSettings(keep=0, grace_s=0)).domains_kept
    lock.write_text('["plots/mini/shop@1"]')
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=0)) == {"plots/mini/shop@1"}


def test_a_build_that_has_just_begun_keeps_all_domains(home: Home, registry: Registry) -> None:
    """It may be about to tune on a version that is live no more."""
    for _ in range(3):
        add_domain(home, registry, "shop")
    settings = GarbageSettings(keep=0, grace_s=0)
    with exclusive(home, home.path / "bank/acme--x", "hPLM 'acme/x'"):
        report = collect_garbage(home, registry, settings)
        assert (report.removed, report.domains_kept) == ((), True)
    assert removed(home, registry, settings) == {"plots/mini/shop@1", "plots/mini/shop@2"}


class BeginningBuild:
    """A build on an old version of a domain, begun in another thread; `moved` once it waits or knows what it reads."""

    def __init__(self, home: Home, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home = home
        self._registry = registry
        self._moved = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.outcome: str | Exception | None = None
        monkeypatch.setattr(LOGGER, "info", lambda *_: self._moved.set())

    def begin(self) -> None:
        self._thread.start()
        assert self._moved.wait(30)

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with exclusive(self._home, self._home.path / "bank/acme--x", "hPLM 'acme/x'") as hold:
                domain = self._registry.find_domain("mini", "shop@1")
                hold.will_read(domain.folders)
                self.outcome = domain.folders[0]
        except Exception as error:
            self.outcome = error
        self._moved.set()


def test_a_build_that_begins_during_a_collection_reads_nothing_that_is_collected(
    home: Home, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        add_domain(home, registry, "shop")
    build = BeginningBuild(home, Registry.open(home), monkeypatch)
    forget = registry.forget_unneeded

    def forget_while_a_build_begins(rule: KeepRule) -> list[Garbage]:
        build.begin()
        return forget(rule)

    monkeypatch.setattr(registry, "forget_unneeded", forget_while_a_build_begins)
    assert "plots/mini/shop@1" in removed(home, registry, GarbageSettings(keep=0, grace_s=0))
    build.join()
    assert isinstance(build.outcome, NotFoundError), build.outcome


def test_a_beginning_build_waits_for_its_lock(home: Home, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    add_domain(home, registry, "shop")
    build = BeginningBuild(home, Registry.open(home), monkeypatch)
    with no_build_begins(home), not_built(home.path / "bank/acme--x", "held"):
        build.begin()
    build.join()
    assert build.outcome == "plots/mini/shop@1"
