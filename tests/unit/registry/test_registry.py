from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import inspect

from backends.errors import ConflictError, FormatVersionError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.schema import REGISTRY_FORMAT_VERSION
from backends.registry.snapshot import RegistrySnapshot


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry.open(Home(tmp_path / "home"), create=True)
    registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    return registry


def publish(registry: Registry, hplm: str) -> int:
    domain = registry.domain("mini", "general")
    return registry.publish_hplm(
        hplm, domain, "classification", ["a", "b"], f"bank/{hplm}", {"dev_accuracy": 1}
    ).version


def test_domains_know_their_ancestors(registry: Registry) -> None:
    general = registry.domain("mini", "general")
    shop = registry.publish_domain("mini", "shop", "plots/mini/shop@1", general, {"tokens": 5})
    child = registry.publish_domain("mini", "shoes", "plots/mini/shoes@1", shop, {})
    assert child.folders == ("plots/mini/shoes@1", "plots/mini/shop@1", "plots/mini/general@1")
    assert registry.publish_domain("mini", "shop", "plots/mini/shop@2", general, {}).version == 2
    assert registry.domain("mini", "shop").version == 2
    assert registry.domain("mini", "shop", 1).metrics == {"tokens": 5}


def test_versions_count_up_also_after_a_deletion(registry: Registry) -> None:
    assert [publish(registry, "acme/x"), publish(registry, "acme/x")] == [1, 2]
    registry.delete_hplm("acme/x")
    assert registry.hplms() == []
    with pytest.raises(NotFoundError):
        registry.hplm("acme/x")
    assert publish(registry, "acme/x") == 3


def test_changes_since_a_revision(registry: Registry) -> None:
    publish(registry, "acme/x")
    revision, entries, deleted = registry.hplm_changes(0)
    assert ([entry.id for entry in entries], deleted) == (["acme/x"], [])
    assert registry.hplm_changes(revision) == (revision, [], [])
    publish(registry, "acme/y")
    registry.delete_hplm("acme/x")
    _, entries, deleted = registry.hplm_changes(revision)
    assert ([entry.id for entry in entries], deleted) == (["acme/y"], ["acme/x"])


def test_a_snapshot_sees_publications_by_itself(registry: Registry, tmp_path: Path) -> None:
    snapshot = RegistrySnapshot(Registry.open(Home(tmp_path / "home")))
    try:
        with pytest.raises(NotFoundError, match="acme/x"):
            snapshot.find("acme/x")
        publish(registry, "acme/x")
        old_key = registry.hplm("acme/x").key
        publish(registry, "acme/x")
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline and not any(entry.version == 2 for entry in snapshot.live()):
            time.sleep(0.02)
        assert snapshot.find("acme/x").version == 2
        assert snapshot.by_key(old_key).version == 1  # requests in flight finish on the version they started with
    finally:
        snapshot.close()


def test_concurrent_publications_all_count(registry: Registry, tmp_path: Path) -> None:
    before = registry.revision

    def work(number: int) -> None:
        own = Registry.open(Home(tmp_path / "home"))
        for _ in range(5):
            publish(own, f"acme/t{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.revision == before + 20
    assert [entry.version for entry in registry.hplms()] == [5, 5, 5, 5]


def test_what_is_missing_or_there_already(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="exists already"):
        registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
    with pytest.raises(NotFoundError, match="'nope'"):
        registry.domain("mini", "nope")
    with pytest.raises(NotFoundError, match="version 7"):
        registry.domain("mini", "general", 7)
    with pytest.raises(NotFoundError, match="no home at"):
        Registry.open(Home(tmp_path / "elsewhere"))


def test_a_root_comes_with_its_first_domain_or_not_at_all(registry: Registry) -> None:
    with pytest.raises(InvalidArgumentError, match="domain name"):
        registry.publish_root("other", "f00d", "roots/other", "no name", "plots/other/x@1", {})
    assert not registry.has_root("other")
    entry = registry.publish_root("other", "f00d", "roots/other", "general", "plots/other/general@1", {"tokens": 3})
    assert (entry.version, entry.folders, entry.metrics) == (1, ("plots/other/general@1",), {"tokens": 3})
    assert registry.domain("other", "general") == entry


def test_reading_makes_no_home(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no home at"):
        Registry.open(Home(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "registry.db").touch()
    with pytest.raises(NotFoundError, match="is empty"):
        Registry.open(Home(tmp_path))
    assert (tmp_path / "registry.db").stat().st_size == 0


@pytest.mark.parametrize("hplm", ["acme", "acme/", "/x", "a/b/c", "../x/y", "acme/x y", "acme/" + "x" * 300, "a--b/x"])
def test_ids_that_are_not_tenant_and_name(registry: Registry, hplm: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tenant/name"):
        publish(registry, hplm)


def test_a_home_of_a_newer_release_is_refused(registry: Registry, tmp_path: Path) -> None:
    with registry._engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE state SET format_version = {REGISTRY_FORMAT_VERSION + 1}")
        connection.exec_driver_sql("DROP TABLE hplm_versions")  # which this release would make again
    for create in (False, True):
        with pytest.raises(FormatVersionError, match="newer release"):
            Registry.open(Home(tmp_path / "home"), create=create)
    assert not inspect(registry._engine).has_table("hplm_versions")


def test_an_unreachable_registry_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPLM_REGISTRY_URL", f"sqlite:///{tmp_path}/no/such/folder/registry.db")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Registry.open(Home(tmp_path), create=True)
