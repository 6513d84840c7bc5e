"""The audit log: every change has its entry, and a change by hand is found."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from registry_behind import downgrade, execute

from backends.errors import CorruptFileError, HplmError
from backends.home import Home
from backends.moments import shown_moment
from backends.registry.audit import AuditEntry, acting_as, note
from backends.registry.garbage import KeepRule
from backends.registry.registry import Registry
from backends.registry.schema import REGISTRY_FORMAT_VERSION

WRONG = "not as it was written"


def publish(registry: Registry, hplm: str) -> None:
    registry.publish_hplm(hplm, registry.domain("mini", "general"), "classification", ["a"], "bank/x", {})


def note_job(registry: Registry, number: int) -> None:
    """Write an entry as the manager does, without a publication."""
    with registry._database.reading() as session:
        note(session, "job.submit gc", "gc", after=f"job {number}", who="token f00")


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
    log = registry.audit.read()
    log.require_sound()
    entries = log.entries
    assert not log.marks
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
        ("quota.set", "acme", None, "weight 2"),
        ("quota.remove", "acme", "weight 2", None),
        ("root.delete", "other", "beef", None),
    ):
        assert wanted in told, wanted
    (revoked,) = (entry for entry in entries if entry.action == "token.revoke")
    assert revoked.before is not None and revoked.before.startswith("valid from ") and revoked.after == "revoked"
    about = {entry.action for entry in entries if entry.is_about("acme")}
    assert {"hplm.publish", "token.create", "token.rotate", "token.revoke", "quota.set"} <= about
    assert not any(entry.is_about("globex") for entry in entries)


@pytest.mark.parametrize(
    ("action", "target", "tenants"),
    [
        ("hplm.publish", "mini/x", {"mini"}),
        ("hplm.pin", "acme/x", {"acme"}),
        ("quota.set", "versions", {"versions"}),
        ("token.create", "token 7, caller of acme", {"acme"}),
        ("token.rotate", "token 7, caller of acme/x", {"acme"}),
        ("token.revoke", "token 7, admin of *", {"*"}),
        ("job.submit hplm.update", "hplm:acme/x", {"acme"}),
        ("job.cancel", "hplm:acme/x", {"acme"}),
        ("job.submit domain.update", "domain:mini/shop", set()),
        ("job.cancel", "root:mini", set()),
        ("job.submit gc", "gc", set()),
        ("job.cancel", "job 7", set()),
        ("root.publish", "mini", set()),
        ("domain.publish", "mini/shop", set()),
        ("gc", "3 versions", set()),
        ("registry.migrate", "registry", set()),
    ],
)
def test_which_tenant_an_entry_is_about(action: str, target: str, tenants: set[str]) -> None:
    entry = AuditEntry(1, 0.0, "somebody", action, target, None, None, 1)
    named = ("acme", "mini", "versions", "job", "7", "gc", "registry", "domain", "hplm", "root", "token", "*")
    assert {tenant for tenant in named if entry.is_about(tenant)} == tenants


def test_entries_of_tokens_say_when_they_are_valid(registry: Registry) -> None:
    start = datetime(2999, 1, 1, 12, tzinfo=UTC).timestamp()
    registry.tokens.create("acme", not_before=start, expires_at=start + 3600)
    old = registry.tokens.create("acme").entry
    new = registry.tokens.rotate(old.id, 60, expires_at=start).entry
    created, lasting, rotated = registry.audit.read().entries[-3:]
    assert created.after == "valid from 2999-01-01T12:00:00Z until 2999-01-01T13:00:00Z"
    assert lasting.after == f"valid from {shown_moment(old.not_before)} until it is revoked"
    (ended,) = [entry for entry in registry.tokens.all() if entry.id == old.id]
    assert ended.expires_at is not None
    assert rotated.before == f"{old.id}, {lasting.after}"
    assert rotated.after == (
        f"{new.id}, valid from {shown_moment(new.not_before)} until 2999-01-01T12:00:00Z; "
        f"{old.id} until {shown_moment(ended.expires_at)}"
    )


def test_a_change_that_fails_has_none(registry: Registry) -> None:
    before = registry.audit.read()
    for change in (registry.delete_hplm, registry.rollback_hplm, registry.tokens.revoke):
        with pytest.raises(HplmError):
            change("acme/none")
    assert registry.audit.read() == before


@pytest.mark.parametrize(
    ("by_hand", "marks", "told"),
    [
        ("UPDATE audit SET who = 'nobody' WHERE number = 3", {3: WRONG}, f"entry 3 is {WRONG}"),
        ("UPDATE audit SET at = at + 1 WHERE number = 3", {3: WRONG}, f"entry 3 is {WRONG}"),
        ("UPDATE audit SET after = '7' WHERE number in (3, 5)", {3: WRONG, 5: WRONG}, f"{WRONG}, entry 5 is {WRONG}"),
        ("UPDATE audit SET before = '' WHERE number = 3", {3: WRONG}, f"entry 3 is {WRONG}"),
        ("UPDATE audit SET revision = 7 WHERE number = 19", {19: WRONG}, f"entry 19 is {WRONG}"),
        ("UPDATE audit SET after = 'x'", dict.fromkeys(range(1, 20), WRONG), "and 14 more faults"),
        ("DELETE FROM audit WHERE number = 3", {4: "before it, entry 3 is missing"}, "entry 3 is missing"),
        ("DELETE FROM audit WHERE number = 1", {2: "before it, entry 1 is missing"}, "entry 1 is missing"),
        ("DELETE FROM audit WHERE number > 1 AND number < 5", {5: "before it, entries 2 to 4 are missing"}, "2 to 4"),
        ("DELETE FROM audit", {}, "at its end, entries 1 to 19 are missing"),
        ("DELETE FROM audit WHERE number > 5", {}, "at its end, entries 6 to 19 are missing"),
        ("UPDATE audit SET number = 99 WHERE number = 3", {4: "before it, entry 3 is missing", 99: WRONG}, "entry 99"),
        ("UPDATE audit SET number = 99 WHERE number = 19", {99: "before it, entry 19 is missing"}, "19 is missing"),
        ("DELETE FROM audit_end", {}, "the number of its last entry is missing"),
        ("UPDATE state SET revision = revision + 1", {}, "it ends at revision 19, and the registry is at 20"),
    ],
)
def test_a_change_by_hand_is_found(
    registry: Registry, home: Home, by_hand: str, marks: dict[int, str], told: str
) -> None:
    change_everything(registry)
    execute(home, by_hand)
    log = registry.audit.read()
    assert log.marks == marks
    registry.tokens.create("acme")  # changes go on
    with pytest.raises(CorruptFileError, match=f"^the audit log was changed by hand: .*{told}"):
        log.require_sound()


def test_what_is_no_entry_is_found_and_the_others_are_read(tmp_path: Path) -> None:
    """SQLite keeps values of any type in any column."""
    home = Home(tmp_path / "home")
    registry = Registry.open(home, create=True)
    for _ in range(5):
        registry.tokens.create("acme")
    execute(
        home,
        "UPDATE audit SET at = 'noon' WHERE number = 2",
        "UPDATE audit SET digest = x'ff' WHERE number = 3",
        "UPDATE audit SET number = 'five' WHERE number = 5",
    )
    log = registry.audit.read()
    assert [entry.number for entry in log.entries] == [1, 3, 4]
    assert set(log.marks) == {3, 4}
    with pytest.raises(CorruptFileError, match=r"entry 2 cannot be read .*at is 'noon', not a number.*entry 'five'"):
        log.require_sound()
    registry.close()


def test_a_removed_end_is_found_where_jobs_were_submitted(registry: Registry, home: Home) -> None:
    """They do not raise the revision; and the gap stays once there are more entries."""
    for number in range(1, 4):
        note_job(registry, number)
    registry.audit.read().require_sound()
    execute(home, "DELETE FROM audit WHERE number > 2")
    with pytest.raises(CorruptFileError, match="at its end, entries 3 to 4 are missing"):
        registry.audit.read().require_sound()
    note_job(registry, 4)
    registry.tokens.create("acme")
    log = registry.audit.read()
    assert log.marks == {5: "before it, entries 3 to 4 are missing"}
    assert log.faults == ["entries 3 to 4 are missing"]
    assert [entry.number for entry in log.entries] == [1, 2, 5, 6]


def test_a_restored_registry_has_its_own_log(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    registry = Registry.open(home, create=True)
    registry.tokens.create("acme")
    file, backup = home.path / "registry.db", tmp_path / "backup.db"
    with sqlite3.connect(file) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    note_job(registry, 1)
    registry.close()
    for path in home.path.glob("registry.db*"):
        path.unlink()
    backup.rename(file)
    restored = Registry.open(home)
    restored.audit.read().require_sound()
    note_job(restored, 1)
    restored.audit.read().require_sound()
    restored.close()


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
    log = registry.audit.read()
    log.require_sound()
    assert len(log.entries) == 33


def test_a_home_of_format_2_begins_its_log_with_the_migration(
    registry: Registry, home: Home, open_registry: Callable[[], Registry]
) -> None:
    downgrade(home, 2, "DROP TABLE audit")
    log = open_registry().audit.read()
    log.require_sound()
    (entry,) = log.entries
    assert (entry.action, entry.before, entry.after) == ("registry.migrate", "2", str(REGISTRY_FORMAT_VERSION))


def test_the_log_of_a_home_of_format_4_goes_on(
    registry: Registry, home: Home, open_registry: Callable[[], Registry]
) -> None:
    note_job(registry, 1)
    downgrade(home, 4)
    migrated = open_registry()
    log = migrated.audit.read()
    log.require_sound()
    assert [entry.action for entry in log.entries] == ["root.publish", "job.submit gc", "registry.migrate"]
    execute(home, "DELETE FROM audit WHERE number = 3")
    with pytest.raises(CorruptFileError, match="at its end, entry 3 is missing"):
        migrated.audit.read().require_sound()


def test_entries_of_a_process_of_an_earlier_release_are_no_fault(registry: Registry, home: Home) -> None:
    """It may still run, and does not count in the registry's state."""
    note_job(registry, 1)
    execute(home, "UPDATE audit_end SET number = 1")
    registry.audit.read().require_sound()
    note_job(registry, 2)
    registry.audit.read().require_sound()
