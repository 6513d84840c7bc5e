"""What a reader of the registry is told has changed since a position, and when it reads everything anew."""

from __future__ import annotations

import pytest
from published import publish
from registry_behind import execute

from backends.home import Home
from backends.registry.position import START
from backends.registry.queries import MAX_NAMED_IDS
from backends.registry.reader import HplmChanges
from backends.registry.registry import Registry
from bench.kit.bulk import NewHplm, register_hplms


def test_changes_since_a_revision(registry: Registry) -> None:
    publish(registry, "acme/x")
    first = registry.hplm_changes(START)
    assert ([entry.id for entry in first.entries], first.is_whole) == (["acme/x"], True)
    assert registry.hplm_changes(first.position) == HplmChanges(first.position)
    publish(registry, "acme/y")
    registry.delete_hplm("acme/x")
    changes = registry.hplm_changes(first.position)
    assert ([entry.id for entry in changes.entries], changes.deleted, changes.is_whole) == (
        ["acme/y"],
        ["acme/x"],
        False,
    )


@pytest.mark.parametrize("count", [3, MAX_NAMED_IDS // 2, MAX_NAMED_IDS])
def test_changes_of_few_and_of_many_are_told_alike(registry: Registry, home: Home, count: int) -> None:
    """Half of the new ones are deleted again."""
    publish(registry, "acme/old")
    domain, before = registry.find_domain("mini", "general"), registry.hplm_changes(START).position
    hplms = [f"acme/new{number}" for number in range(2 * count)]
    register_hplms(home, [NewHplm(hplm, domain, f"bank/{hplm}", "classification", ["a"], {}) for hplm in hplms])
    revision = registry.revision
    gone = ", ".join(f"'{hplm}'" for hplm in hplms[::2])
    execute(home, f"UPDATE hplms SET live_version_id = NULL, revision = {revision} WHERE name IN ({gone})")
    changes = registry.hplm_changes(before)
    assert {entry.id for entry in changes.entries} == set(hplms[1::2])
    assert sorted(changes.deleted) == sorted(hplms[::2])
    assert (changes.is_whole, changes.has_access) == (False, False)


def test_changes_say_whether_tokens_or_quotas_were_written(registry: Registry) -> None:
    told, position = [], registry.hplm_changes(START).position
    for write in (
        lambda: publish(registry, "acme/x"),
        lambda: registry.tokens.create("acme"),
        lambda: publish(registry, "acme/y"),
        lambda: registry.quotas.set("acme", {"weight": 2.0}),
        lambda: registry.delete_hplm("acme/x"),
    ):
        write()
        changes = registry.hplm_changes(position)
        told.append(changes.has_access)
        position = changes.position
    assert told == [False, True, False, True, False]


@pytest.mark.parametrize("ahead", [0, 3])
def test_another_history_is_read_as_a_whole(registry: Registry, home: Home, ahead: int) -> None:
    """At an earlier revision than was read, at the same, or at a later one."""
    publish(registry, "acme/x")
    before = registry.hplm_changes(START).position
    publish(registry, "acme/lost")
    read = registry.hplm_changes(before).position
    execute(  # what a restore leaves
        home,
        "DELETE FROM hplm_versions WHERE hplm_id = (SELECT id FROM hplms WHERE name = 'acme/lost')",
        "DELETE FROM hplms WHERE name = 'acme/lost'",
        f"DELETE FROM publications WHERE revision > {before.revision}",
        f"UPDATE state SET revision = {before.revision}",
    )
    for number in range(ahead):
        publish(registry, f"acme/y{number}")
    changes = registry.hplm_changes(read)
    assert changes.is_whole and not changes.deleted
    assert {entry.id for entry in changes.entries} == {"acme/x", *(f"acme/y{number}" for number in range(ahead))}
    assert changes.position.revision == before.revision + ahead


def test_an_old_build_that_marks_nothing_is_read_as_a_whole(registry: Registry, home: Home) -> None:
    publish(registry, "acme/x")
    read = registry.hplm_changes(START).position
    execute(home, "UPDATE state SET revision = revision + 1")
    unmarked = registry.hplm_changes(read).position
    assert unmarked.mark is None
    publish(registry, "acme/y")
    assert registry.hplm_changes(unmarked).is_whole


def test_the_marks_that_are_kept_are_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.registry.database.KEPT_PUBLICATIONS", 3)
    positions = []
    for number in range(5):
        publish(registry, f"acme/x{number}")
        positions.append(registry.hplm_changes(START).position)
    assert [registry.hplm_changes(position).is_whole for position in positions] == [True, True, False, False, False]
