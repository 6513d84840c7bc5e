"""The audit log: every change has its entry, and a change by hand is found."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from registry_behind import execute

from backends.errors import CorruptFileError, HplmError
from backends.home import Home
from backends.registry.audit import acting_as
from backends.registry.garbage import KeepRule
from backends.registry.registry import Registry
from backends.registry.schema import REGISTRY_FORMAT_VERSION


def publish(registry: Registry, hplm: str) -> None:
    registry.publish_hplm(hplm, registry.domain("mini", "general"), "classification", ["a"], "bank/x", {})


def change_everything(registry: Registry) -> None:
    general = registry.domain("mini", "general")
    for _ in range(2):
        registry.publish_domain("mini", "shop", "plots/shop", general, {})
        publish(registry, "acme/x")
    registry.rollback_domain("mini", "shop")
    registry.delete_domain("mini", "shop")
    registry.rollback_hplm("acme/x")
    registry.pin_hplm("acme/x")
    registry.unpin_hplm("acme/x")
    registry.delete_hplm("acme/x")
    registry.forget_unneeded(KeepRule(0, 1e12))
    issued = registry.tokens.create("acme")
    registry.tokens.revoke(registry.tokens.rotate(issued.entry.id, 60).entry.id)
    registry.quotas.set("acme", {"weight": 2.0})
    registry.quotas.remove("acme")
    registry.publish_root("other", "beef", "roots/other", "general", "plots/other", {})
    registry.delete_root("other")


def test_every_change_has_its_entry(registry: Registry) -> None:
    with acting_as("somebody"):
        change_everything(registry)
    entries = registry.audit.entries()
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.revision for entry in entries] == list(range(1, registry.revision + 1))
    assert {entry.who for entry in entries[1:]} == {"somebody"}
    assert entries[0].who.startswith("uid ")
    told = [(entry.action, entry.target.partition(" ")[0], entry.before, entry.after) for entry in entries]
    for wanted in (
        ("root.publish", "mini", None, "f00d"),
        ("domain.publish", "mini/shop", "1", "2"),
        ("domain.rollback", "mini/shop", "2", "1"),
        ("domain.delete", "mini/shop", "1", None),
        ("hplm.publish", "acme/x", None, "1"),
        ("hplm.publish", "acme/x", "1", "2"),
        ("hplm.rollback", "acme/x", "2", "1"),
        ("hplm.pin", "acme/x", None, "general@1"),
        ("hplm.unpin", "acme/x", "general@1", None),
        ("hplm.delete", "acme/x", "1", None),
        ("quota.set", "acme", "weight 2", None),
        ("root.delete", "other", "beef", None),
    ):
        assert wanted in told, wanted
    assert [entry.number for entry in registry.audit.entries(since=entries[3].at)] == list(range(4, len(entries) + 1))
    about = {entry.action for entry in entries if entry.is_about("acme")}
    assert {"hplm.publish", "token.create", "token.rotate", "token.revoke", "quota.set"} <= about
    assert not any(entry.is_about("globex") for entry in entries)


def test_a_change_that_fails_has_none(registry: Registry) -> None:
    before = registry.audit.entries()
    for change in (registry.delete_hplm, registry.rollback_hplm, registry.tokens.revoke):
        with pytest.raises(HplmError):
            change("acme/none")
    assert registry.audit.entries() == before


@pytest.mark.parametrize(
    "by_hand",
    [
        "UPDATE audit SET who = 'nobody' WHERE number = 3",
        "UPDATE audit SET at = at + 1 WHERE number = 3",
        "UPDATE audit SET after = '7' WHERE number = 3",
        "UPDATE audit SET before = '' WHERE number = 3",
        "DELETE FROM audit WHERE number = 3",
        "DELETE FROM audit WHERE number = 1",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE number > 5",
        "UPDATE audit SET number = 99 WHERE number = 3",
        "UPDATE state SET revision = revision + 1",
    ],
)
def test_a_change_by_hand_is_found(registry: Registry, home: Home, by_hand: str) -> None:
    change_everything(registry)
    execute(home, by_hand)
    with pytest.raises(CorruptFileError, match="the audit log was changed by hand"):
        registry.audit.entries()


def test_many_writers_make_one_chain(registry: Registry, open_registry: Callable[[], Registry]) -> None:
    others = [open_registry() for _ in range(4)]

    def write(one: Registry) -> None:
        for _ in range(8):
            one.tokens.create("acme")

    threads = [threading.Thread(target=write, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.audit.entries()) == 33


def test_a_home_of_format_2_begins_its_log_with_the_migration(
    registry: Registry, home: Home, open_registry: Callable[[], Registry]
) -> None:
    execute(home, "DROP TABLE audit", "UPDATE state SET format_version = 2")
    (entry,) = open_registry().audit.entries()
    assert (entry.action, entry.before, entry.after) == ("registry.migrate", "2", str(REGISTRY_FORMAT_VERSION))
