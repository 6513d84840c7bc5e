"""What `hplm gc` takes and what it leaves, on a home of small real folders."""

from __future__ import annotations

import random

import pytest
from folder_home import AT_ONCE, add_domain, add_hplm, add_root, folders, removed

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_domain, rollback_hplm
from seeds import SEED


def test_the_last_versions_stay_for_a_rollback(home: Home, registry: Registry) -> None:
    for _ in range(5):
        add_hplm(home, registry, "acme/x")
    report = collect_garbage(home, registry, AT_ONCE, dry_run=True)
    assert [removal.name for removal in report.removed] == ["acme/x@1", "acme/x@2", "acme/x@3"]
    assert (report.size_bytes, len(folders(home))) == (3000, 7)
    assert collect_garbage(home, registry, AT_ONCE).removed == report.removed
    assert [version.entry.version for version in registry.hplm_versions("acme/x")] == [4, 5]
    assert rollback_hplm(home, registry, "acme/x").version == 4
    assert removed(home, registry) == set()
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=0)) == {"bank/mini/acme--x@5"}
    assert add_hplm(home, registry, "acme/x") == 6


def test_what_was_live_a_moment_ago_stays(home: Home, registry: Registry) -> None:
    for _ in range(3):
        add_hplm(home, registry, "acme/x")
    registry.delete_hplm("acme/x")
    add_domain(home, registry, "shop")
    registry.delete_domain("mini", "shop")
    before = folders(home)
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=30, unfinished_s=0)) == set()
    assert folders(home) == before
    assert removed(home, registry, GarbageSettings(keep=0, grace_s=0)) == {
        *(f"bank/mini/acme--x@{version}" for version in (1, 2, 3)),
        "plots/mini/shop@1",
    }


def test_domain_versions_stay_while_anything_needs_them(home: Home, registry: Registry) -> None:
    add_domain(home, registry, "shop")  # 1: the parent of shoes
    add_domain(home, registry, "shoes", "shop")
    add_domain(home, registry, "shop")  # 2: acme/live is tuned on it
    add_hplm(home, registry, "acme/live", "shop")
    add_domain(home, registry, "shop")  # 3: acme/pinned is pinned to it
    add_hplm(home, registry, "acme/pinned", "shop", pinned=True)
    add_hplm(home, registry, "acme/pinned", "shop")
    add_domain(home, registry, "shop")  # 4: acme/old was tuned on it, two versions ago
    for domain in ("shop", "general", "general"):
        add_hplm(home, registry, "acme/old", domain)
    for _ in range(3):
        add_domain(home, registry, "shop")  # 5: nobody's; 6: kept for a rollback; 7: live
    assert removed(home, registry) == {"bank/mini/acme--old@1", "plots/mini/shop@4", "plots/mini/shop@5"}
    registry.unpin_hplm("acme/pinned")
    registry.delete_hplm("acme/pinned")
    assert removed(home, registry) == {*(f"bank/mini/acme--pinned@{v}" for v in (1, 2)), "plots/mini/shop@3"}
    registry.delete_domain("mini", "shoes")
    assert removed(home, registry) == {"plots/mini/shoes@1", "plots/mini/shop@1"}
    assert rollback_domain(home, registry, "mini", "shop").label == "shop@6"
    assert registry.hplm("acme/live").domain.label == "shop@2"


def test_whatever_happens_what_is_needed_stays_on_disk(home: Home, registry: Registry) -> None:
    """Random histories: after every collection all that is registered has its folders, and nothing else is there."""
    chance = random.Random(SEED)
    for _ in range(60):
        hplm, domain = f"acme/{chance.choice('ab')}", chance.choice(["shop", "shoes"])
        match chance.randrange(7):
            case 0:
                add_domain(home, registry, domain, chance.choice(["general", *(d.name for d in registry.domains())]))
            case 1 | 2:
                add_hplm(home, registry, hplm, chance.choice(registry.domains()).name, pinned=chance.random() < 0.3)
            case 3 if registry.has_hplm(hplm) and len(registry.hplm_versions(hplm)) > 1:
                registry.rollback_hplm(
                    hplm, chance.choice([v for v in registry.hplm_versions(hplm) if not v.is_live]).entry.version
                )
            case 4 if registry.has_hplm(hplm) and chance.random() < 0.3:
                registry.delete_hplm(hplm)
            case 5 if registry.has_domain("mini", domain) and len(registry.domain_versions("mini", domain)) > 1:
                older = [v for v in registry.domain_versions("mini", domain) if not v.is_live]
                registry.rollback_domain("mini", domain, chance.choice(older).entry.version)
            case _:
                collect_garbage(home, registry, GarbageSettings(keep=chance.randrange(2), grace_s=0, unfinished_s=0))
                assert folders(home) == registry.known_folders()
                for entry in registry.hplms():
                    needed = {entry.folder, *entry.domain.folders, *(entry.pinned or entry.domain).folders}
                    assert needed <= folders(home)


def test_what_lies_beside_a_version_goes_with_it(home: Home, registry: Registry) -> None:
    add_domain(home, registry, "shop")
    (home.path / "plots/mini/shop@1.overlay").mkdir()
    (home.path / "plots/mini/shop@1.overlay/0.log").write_bytes(b"12345")
    (home.path / "roots/mini.mlm_head.safetensors").write_bytes(b"123")
    assert removed(home, registry) == set()
    registry.delete_domain("mini", "shop")
    report = collect_garbage(home, registry, AT_ONCE)
    assert [(removal.name, removal.size_bytes) for removal in report.removed] == [("shop@1", 1005)]
    assert folders(home) == {"roots/mini", "roots/mini.mlm_head.safetensors", "plots/mini/general@1"}


def test_a_folder_that_a_live_version_shares_stays(home: Home, registry: Registry) -> None:
    add_hplm(home, registry, "acme/x")
    entry = registry.hplm("acme/x")
    for _ in range(2):
        registry.publish_hplm(entry.id, entry.domain, entry.task, entry.labels, entry.folder, {})
    (removal,) = collect_garbage(home, registry, AT_ONCE).removed
    assert (removal.name, removal.folder, removal.size_bytes) == ("acme/x@1", None, 0)
    assert (home.path / entry.folder).exists()


def test_a_deleted_root_frees_its_name(home: Home, registry: Registry) -> None:
    add_root(home, registry, "other")
    registry.delete_root("other")
    report = collect_garbage(home, registry, AT_ONCE, dry_run=True)
    assert {removal.folder for removal in report.removed} == {"roots/other", "plots/other/general@1"}
    assert removed(home, registry) == {"roots/other", "plots/other/general@1"}
    registry.require_new_root("other")
    add_root(home, registry, "other")
    assert registry.find_domain("other", "general").version == 1


def test_the_files_of_a_root_of_a_longer_name_stay(home: Home, registry: Registry) -> None:
    add_root(home, registry, "other")
    add_root(home, registry, "other.v2")
    for name in ("other", "other.v2"):
        (home.path / f"roots/{name}.mlm_head.safetensors").write_bytes(b"123")
    registry.delete_root("other")
    removed(home, registry)
    assert {path.name for path in (home.path / "roots").glob("other*")} == {"other.v2", "other.v2.mlm_head.safetensors"}


def test_a_version_without_its_files_does_not_go_live(home: Home, registry: Registry) -> None:
    for _ in range(2):
        add_domain(home, registry, "shop")
        add_hplm(home, registry, "acme/x", "shop")
    for folder in (home.bank("mini", "acme/x", 1), home.plot("mini", "shop", 1)):
        folder.rename(folder.with_name("away"))
        with pytest.raises(CorruptFileError, match=r"acme/x@1 cannot go live again: .* is missing"):
            rollback_hplm(home, registry, "acme/x")
        assert registry.hplm("acme/x").version == 2
        if "plots" in folder.parts:
            with pytest.raises(CorruptFileError, match="shop@1 cannot go live again"):
                rollback_domain(home, registry, "mini", "shop", to=1)
        folder.with_name("away").rename(folder)
    assert rollback_hplm(home, registry, "acme/x").version == 1


@pytest.mark.parametrize("wrong", [{"keep": -1}, {"grace_s": -1.0}, {"unfinished_s": -0.5}])
def test_numbers_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        GarbageSettings(**wrong)
