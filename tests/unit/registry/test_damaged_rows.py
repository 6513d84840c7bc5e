"""A registry whose rows say what no release writes is damaged, and says so in one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from backends.errors import CorruptFileError, UnauthorisedError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import IssuedToken, Role


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE state SET format_version = 'four'",
        "UPDATE hplm_versions SET labels = 'no JSON'",
        "UPDATE hplm_versions SET labels = '{}'",
        "UPDATE hplm_versions SET folder = x'00ff'",
        "UPDATE hplm_versions SET metrics = '[]'",
        """UPDATE hplm_versions SET metrics = '{"ladder": {"after": 1, "layers": 0, "answered_early": 0.5}}'""",
        """UPDATE hplm_versions SET metrics =
        '{"ladder": {"after": 1, "layers": 2, "answered_early": 0.5, "kept_tokens": 1.5}}'""",
        """UPDATE hplm_versions SET metrics = '{"declared": {"default_deadline": true}}'""",
        "UPDATE domain_versions SET folders = '7'",
        "UPDATE hplm_versions SET domain_version_id = 999",
    ],
)
def test_a_row_that_no_release_writes(statement: str, tiny_home: Home) -> None:
    with closing(sqlite3.connect(tiny_home.path / "registry.db")) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises(CorruptFileError) as caught:
        RegistrySnapshot.open(tiny_home).close()
    assert "registry" in str(caught.value)


def publish(registry: Registry, hplm: str) -> None:
    registry.publish_hplm(hplm, registry.domain("mini", "general"), "classification", ["a"], "bank/x", {})


def is_valid(snapshot: RegistrySnapshot, issued: IssuedToken) -> bool:
    try:
        snapshot.tokens.require(issued.text, Role.CALLER)
    except UnauthorisedError:
        return False
    return True


def change_by_hand(home: Home, *statements: str) -> None:
    """Change rows; those that are set to NOW are read next by servers."""
    with closing(sqlite3.connect(home.path / "registry.db")) as database:
        for statement in statements:
            database.execute(statement.replace("NOW", "revision = (SELECT revision FROM state)"))
        database.commit()


@pytest.mark.parametrize("no_text", ["'x'", "x'ff'", "CAST(x'ff' AS TEXT)"])
def test_a_damaged_row_holds_up_no_other(no_text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    with closing(Registry.open(home, create=True)) as registry:
        registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
        broken, *leaked = [registry.tokens.create(tenant) for tenant in ("acme", "globex", "initech", "umbrella")]
        for tenant in ("acme", "globex"):
            registry.quotas.set(tenant, {"weight": 2.0})
            publish(registry, f"{tenant}/x")
        with closing(RegistrySnapshot(Registry.open(home), refresh_interval_s=3600)) as snapshot:
            assert all(is_valid(snapshot, one) for one in (broken, *leaked))
            for one in leaked:
                registry.tokens.revoke(one.entry.id)
            for tenant in ("acme", "globex", "initech"):
                registry.quotas.set(tenant, {"weight": 3.0})
                publish(registry, f"{tenant}/x")
            change_by_hand(
                home,
                f"UPDATE tokens SET sha256 = {no_text}, NOW WHERE token_id = '{broken.entry.id}'",
                f"UPDATE quotas SET rows_per_s = {no_text}, NOW WHERE tenant = 'acme'",
                f"UPDATE hplm_versions SET labels = {no_text} WHERE version = 2 AND hplm_id = 1",
            )
            snapshot.refresh()
            assert not any(is_valid(snapshot, one) for one in (broken, *leaked))
            assert snapshot.quotas.weights == {"acme": 2.0, "globex": 3.0, "initech": 3.0}
            assert {entry.id: entry.version for entry in snapshot.live()} == {
                "acme/x": 1, "globex/x": 2, "initech/x": 1,
            }  # fmt: skip
            told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
            assert [message.partition(":")[0] for message in told] == [
                f"token '{broken.entry.id}' is rejected",
                "the quota of tenant 'acme' stays as it was",
                "hPLM 'acme/x' stays as it was",
            ]
            change_by_hand(home, "UPDATE quotas SET rows_per_s = NULL")
            publish(registry, "acme/x")
            snapshot.refresh()
            assert snapshot.find("acme/x").version == 3
            assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 3


def test_a_server_starts_on_what_can_be_read(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with closing(Registry.open(home, create=True)) as registry:
        registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
        tokens = [registry.tokens.create("acme") for _ in range(5)]
        for name in "abcde":
            publish(registry, f"acme/{name}")
        change_by_hand(
            home,
            f"UPDATE tokens SET role = 'king' WHERE token_id = '{tokens[2].entry.id}'",
            "UPDATE hplm_versions SET metrics = '[]' WHERE hplm_id IN (2, 5)",
        )
        with closing(RegistrySnapshot.open(home)) as snapshot:
            assert [is_valid(snapshot, one) for one in tokens] == [True, True, False, True, True]
            assert {entry.id for entry in snapshot.live()} == {"acme/a", "acme/c", "acme/d"}
