from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from published import publish
from registry_behind import execute

from backends.errors import ConflictError, FormatVersionError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.position import START
from backends.registry.registry import Registry
from backends.registry.schema import REGISTRY_FORMAT_VERSION

Open = Callable[[], Registry]


def publish_domain(registry: Registry, name: str, parent: str = "general") -> str:
    version = registry.next_domain_version("mini", name)
    above = registry.find_domain("mini", parent)
    return registry.publish_domain("mini", name, f"plots/mini/{name}@{version}", above, {}, version=version).label


def test_domains_know_their_ancestors(registry: Registry) -> None:
    general = registry.domain("mini", "general")
    shop = registry.publish_domain("mini", "shop", "plots/mini/shop@1", general, {"tokens": 5})
    child = registry.publish_domain("mini", "shoes", "plots/mini/shoes@1", shop, {})
    assert child.folders == ("plots/mini/shoes@1", "plots/mini/shop@1", "plots/mini/general@1")
    assert registry.domain_parent(child) == shop
    assert registry.domain_parent(general) is None
    assert registry.publish_domain("mini", "shop", "plots/mini/shop@2", general, {}).version == 2
    assert registry.domain("mini", "shop").version == 2
    assert registry.domain("mini", "shop", 1).metrics == {"tokens": 5}
    assert registry.domain("mini", "shoes").folders == child.folders


def test_a_domain_may_read_any_folders(registry: Registry) -> None:
    general = registry.domain("mini", "general")
    folders = ["plots/mini/shop@1", "plots/elsewhere", *general.folders]
    registry.publish_domain("mini", "shop", "plots/mini/shop@1", general, {}, folders=folders)
    assert registry.domain("mini", "shop").folders == tuple(folders)
    assert set(folders) <= registry.known_folders()


def test_versions_count_up_also_after_a_deletion(registry: Registry) -> None:
    assert [publish(registry, "acme/x").version for _ in range(2)] == [1, 2]
    registry.delete_hplm("acme/x")
    assert registry.hplms() == []
    for what in (registry.hplm, registry.delete_hplm, registry.rollback_hplm, registry.hplm_versions):
        with pytest.raises(NotFoundError, match="'acme/x' does not exist"):
            what("acme/x")
    assert publish(registry, "acme/x").version == 3


def test_rolling_an_hplm_back(registry: Registry) -> None:
    entries = [publish(registry, "acme/x") for _ in range(3)]
    before = registry.hplm_changes(START).position
    assert registry.rollback_hplm("acme/x") == entries[1]
    assert registry.hplm("acme/x") == entries[1]
    assert registry.hplm_changes(before).entries == [entries[1]]
    assert registry.rollback_hplm("acme/x").version == 1
    with pytest.raises(NotFoundError, match="no version before 1"):
        registry.rollback_hplm("acme/x")
    assert registry.rollback_hplm("acme/x", to=3) == entries[2]
    with pytest.raises(InvalidArgumentError, match="at version 3 already"):
        registry.rollback_hplm("acme/x", to=3)
    with pytest.raises(NotFoundError, match="no version 9; there are 1, 2, 3"):
        registry.rollback_hplm("acme/x", to=9)
    registry.rollback_hplm("acme/x")
    assert publish(registry, "acme/x").version == 4
    history = registry.hplm_versions("acme/x")
    assert [version.entry.version for version in history] == [1, 2, 3, 4]
    assert [version.is_live for version in history] == [False, False, False, True]
    assert [version.retired_at is None for version in history] == [False, False, False, True]
    assert all(version.published_at for version in history)


def test_rolling_a_domain_back_leaves_its_hplms(registry: Registry) -> None:
    publish_domain(registry, "shop")
    first = publish(registry, "acme/x", "shop")
    publish_domain(registry, "shop")
    second = publish(registry, "acme/y", "shop")
    assert registry.rollback_domain("mini", "shop").version == 1
    assert registry.find_domain("mini", "shop").label == "shop@1"
    assert registry.hplms() == [first, second]
    assert second.domain.label == "shop@2"
    assert publish_domain(registry, "shop") == "shop@3"
    assert [(v.entry.version, v.is_live) for v in registry.domain_versions("mini", "shop")] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    with pytest.raises(NotFoundError, match="no version before 1"):
        registry.rollback_domain("mini", "general")


def test_an_update_follows_the_domain_unless_it_is_pinned(registry: Registry) -> None:
    publish_domain(registry, "shop")
    publish(registry, "acme/free", "shop")
    publish(registry, "acme/held", "shop", pinned=True)
    publish_domain(registry, "shop")
    assert registry.domain_for_update("acme/free").label == "shop@2"
    assert registry.domain_for_update("acme/held").label == "shop@1"
    held = registry.hplm("acme/held")
    assert held.pinned == held.domain

    publish(registry, "acme/held", "shop@1")
    assert registry.domain_for_update("acme/held").label == "shop@1"
    pinned = registry.pin_hplm("acme/held", 2)
    assert (pinned.pinned, pinned.domain.label) == (registry.find_domain("mini", "shop@2"), "shop@1")
    assert registry.unpin_hplm("acme/held").pinned is None
    assert registry.pin_hplm("acme/free").pinned == registry.find_domain("mini", "shop@1")
    publish(registry, "acme/free", "shop", pinned=False)
    assert registry.hplm("acme/free").pinned is None
    with pytest.raises(NotFoundError, match="no version 7"):
        registry.pin_hplm("acme/free", 7)
    with pytest.raises(InvalidArgumentError, match="name@version"):
        registry.find_domain("mini", "shop@latest")


def test_a_domain_is_not_deleted_under_its_users(registry: Registry) -> None:
    publish_domain(registry, "shop")
    publish_domain(registry, "shoes", "shop")
    with pytest.raises(ConflictError, match="'shop' cannot be deleted: domain 'shoes' needs it"):
        registry.delete_domain("mini", "shop")
    registry.delete_domain("mini", "shoes")
    for name in "abcde":
        publish(registry, f"acme/{name}", "shop")
    with pytest.raises(ConflictError, match="acme/a, acme/b, acme/c and 2 more need it"):
        registry.delete_domain("mini", "shop")
    for name in "bcde":
        registry.delete_hplm(f"acme/{name}")
    publish(registry, "acme/a", "general")
    with pytest.raises(ConflictError, match=r"acme/a@1 \(kept for a rollback\) needs it"):
        registry.delete_domain("mini", "shop")
    registry.delete_hplm("acme/a")
    assert registry.delete_domain("mini", "shop").label == "shop@1"
    assert [domain.name for domain in registry.domains()] == ["general"]
    assert not registry.has_domain("mini", "shop")
    with pytest.raises(NotFoundError, match="'shop' of root 'mini' does not exist"):
        registry.find_domain("mini", "shop@1")
    assert publish_domain(registry, "shop") == "shop@2"
    with pytest.raises(ConflictError, match="hplm root delete mini"):
        registry.delete_domain("mini", "general")


def test_a_pin_goes_with_its_domain(registry: Registry) -> None:
    publish_domain(registry, "shop")
    publish(registry, "acme/x", "shop", pinned=True)
    publish(registry, "acme/x", "shop")
    assert registry.domain_for_update("acme/x").label == "shop@1"
    publish(registry, "acme/x", "general")
    assert registry.hplm("acme/x").pinned is None


def test_a_root_is_not_deleted_under_its_users(registry: Registry) -> None:
    publish_domain(registry, "shop")
    publish(registry, "acme/x")
    with pytest.raises(ConflictError, match="'mini' cannot be deleted: domain 'shop', acme/x need it"):
        registry.delete_root("mini")
    registry.delete_hplm("acme/x")
    registry.delete_domain("mini", "shop")
    registry.delete_root("mini")
    assert registry.roots() == registry.domains() == []
    assert not registry.has_root("mini")
    with pytest.raises(ConflictError, match="'hplm gc' frees the name"):
        registry.require_new_root("mini")
    with pytest.raises(NotFoundError, match="root 'mini' does not exist"):
        publish_domain_of_deleted_root(registry)


def publish_domain_of_deleted_root(registry: Registry) -> None:
    registry.publish_domain("mini", "late", "plots/mini/late@1", None, {})


def test_who_builds_the_same_version_second_is_told(registry: Registry) -> None:
    version = registry.next_hplm_version("acme/x")
    publish(registry, "acme/x", version=version)
    before = registry.revision
    with pytest.raises(ConflictError, match="'acme/x' was published by another build meanwhile, as version 1"):
        publish(registry, "acme/x", version=version)
    general = registry.domain("mini", "general")
    with pytest.raises(ConflictError, match="'general' was published by another build"):
        registry.publish_domain("mini", "general", "x", general, {}, version=1)
    assert registry.revision == before
    assert [entry.version for entry in registry.hplms()] == [1]


def test_an_update_of_what_has_gone_meanwhile_brings_nothing_back(registry: Registry) -> None:
    live = publish(registry, "acme/x")
    assert publish(registry, "acme/x", replaces=live.version).version == 2
    with pytest.raises(ConflictError, match=r"version 1 of hPLM 'acme/x'.* is live no more"):
        publish(registry, "acme/x", replaces=live.version)
    registry.delete_hplm("acme/x")
    with pytest.raises(ConflictError, match=r"version 2 of hPLM 'acme/x'.* is live no more"):
        publish(registry, "acme/x", replaces=2)
    assert registry.hplms() == []


def test_an_update_of_a_domain_that_has_gone_meanwhile_brings_nothing_back(registry: Registry) -> None:
    general = registry.domain("mini", "general")
    assert publish_domain(registry, "shop") == "shop@1"
    assert registry.publish_domain("mini", "shop", "x", general, {}, version=2, replaces=1).version == 2
    registry.delete_domain("mini", "shop")
    with pytest.raises(ConflictError, match=r"version 2 of domain 'shop'.* is live no more"):
        registry.publish_domain("mini", "shop", "y", general, {}, version=3, replaces=2)
    assert not registry.has_domain("mini", "shop")


def test_folders_of_published_versions_are_not_built_in(registry: Registry) -> None:
    folder = publish(registry, "acme/x").folder
    with pytest.raises(ConflictError, match="never written over"):
        registry.require_unknown_folder(folder)
    registry.require_unknown_folder(f"{folder}0")


def test_concurrent_publications_all_count(registry: Registry, open_registry: Open) -> None:
    before = registry.revision

    def work(own: Registry, number: int) -> None:
        for _ in range(5):
            publish(own, f"acme/t{number}")

    threads = [threading.Thread(target=work, args=(open_registry(), number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.revision == before + 20
    assert [entry.version for entry in registry.hplms()] == [5, 5, 5, 5]


def test_of_two_creates_at_once_one_wins(registry: Registry, open_registry: Open) -> None:
    start = threading.Barrier(4)
    outcomes: list[object] = []

    def create(own: Registry) -> None:
        start.wait()
        try:
            outcomes.append(publish(own, "acme/x", version=1).version)
        except ConflictError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=create, args=(open_registry(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(1) == 1
    assert sum("published by another build meanwhile" in str(outcome) for outcome in outcomes) == 3


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


@pytest.mark.parametrize("hplm", ["acme", "acme/", "/x", "a/b/c", "../x/y", "acme/x y", "acme/" + "x" * 300, "a--b/x"])
def test_ids_that_are_not_tenant_and_name(registry: Registry, hplm: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tenant/name"):
        publish(registry, hplm)


def test_a_home_of_a_newer_release_is_refused(registry: Registry, home: Home) -> None:
    execute(home, f"UPDATE state SET format_version = {REGISTRY_FORMAT_VERSION + 1}", "DROP TABLE hplm_versions")
    for create in (False, True):
        with pytest.raises(FormatVersionError, match="newer release"):
            Registry.open(home, create=create)
    with pytest.raises(Exception, match="hplm_versions"):  # which this release would have made again
        execute(home, "SELECT 1 FROM hplm_versions")


def test_ten_thousand_hplms_cost_a_few_statements(registry: Registry, open_registry: Open) -> None:
    """As many statements as for ten; how long they take is measured by `bench.registry`."""
    from sqlalchemy import event

    publish_domain(registry, "shop")
    for number in range(30):
        publish(registry, f"acme/t{number}", ["general", "shop"][number % 2])
    statements: list[str] = []
    reader = open_registry()
    event.listen(reader._database.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    assert len(reader.hplms()) == 30
    assert len(statements) == 2
    assert len(reader.domains()) == 2
    assert len(statements) == 3


def test_a_lock_that_is_let_go_in_time_is_waited_for(registry: Registry, home: Home, open_registry: Open) -> None:
    other = open_registry()
    with other._database.publication():
        waiting = threading.Thread(target=publish, args=(registry, "acme/x"))
        waiting.start()
        time.sleep(0.5)
        assert waiting.is_alive()
    waiting.join(timeout=30)
    assert registry.has_hplm("acme/x")
