"""Registries that earlier releases wrote."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from registry_behind import execute
from sqlalchemy import inspect

from backends.home import Home
from backends.registry.database import Database
from backends.registry.registry import Registry
from backends.registry.schema import REGISTRY_FORMAT_VERSION, Base
from backends.registry.snapshot import RegistrySnapshot

FORMAT_1 = (
    "CREATE TABLE state ({id}, format_version INTEGER NOT NULL, revision BIGINT NOT NULL)",
    "CREATE TABLE roots ({id}, name VARCHAR NOT NULL UNIQUE, fingerprint VARCHAR NOT NULL, folder VARCHAR NOT NULL)",
    """CREATE TABLE domains ({id}, root_id INTEGER NOT NULL REFERENCES roots (id), name VARCHAR NOT NULL,
       live_version INTEGER NOT NULL, UNIQUE (root_id, name))""",
    """CREATE TABLE domain_versions ({id}, domain_id INTEGER NOT NULL REFERENCES domains (id),
       version INTEGER NOT NULL, parent_id INTEGER REFERENCES domain_versions (id), folder VARCHAR NOT NULL,
       metrics JSON NOT NULL, UNIQUE (domain_id, version))""",
    """CREATE TABLE hplms ({id}, name VARCHAR NOT NULL UNIQUE, live_version_id BIGINT, revision BIGINT NOT NULL)""",
    "CREATE INDEX ix_hplms_revision ON hplms (revision)",
    """CREATE TABLE hplm_versions (id BIGINT NOT NULL PRIMARY KEY, hplm_id INTEGER NOT NULL REFERENCES hplms (id),
       version INTEGER NOT NULL, domain_version_id INTEGER NOT NULL REFERENCES domain_versions (id),
       task VARCHAR NOT NULL, labels JSON NOT NULL, folder VARCHAR NOT NULL, metrics JSON NOT NULL,
       UNIQUE (hplm_id, version))""",
    "INSERT INTO state VALUES (1, 1, 7)",
    "INSERT INTO roots (name, fingerprint, folder) VALUES ('mini', 'f00d', 'roots/mini')",
    "INSERT INTO domains (root_id, name, live_version) VALUES (1, 'general', 1), (1, 'shop', 2), (1, 'shoes', 1)",
    """INSERT INTO domain_versions (domain_id, version, parent_id, folder, metrics) VALUES
       (1, 1, NULL, 'p/general@1', '{{}}'), (2, 1, 1, 'p/shop@1', '{{"tokens": 5}}'), (2, 2, 1, 'p/shop@2', '{{}}'),
       (3, 1, 2, 'p/shoes@1', '{{}}')""",
    "INSERT INTO hplms (name, live_version_id, revision) VALUES ('acme/x', 103, 6), ('acme/gone', NULL, 7)",
    """INSERT INTO hplm_versions VALUES
       (102, 1, 1, 2, 'classification', '["a", "b"]', 'b/acme--x@1', '{{}}'),
       (103, 1, 2, 4, 'classification', '["a", "b"]', 'b/acme--x@2', '{{"dev_accuracy": 0.9}}'),
       (104, 2, 4, 1, 'classification', '["a", "b"]', 'b/acme--gone@4', '{{}}')""",
)


@pytest.fixture
def old_home(home: Home) -> Home:
    home.path.mkdir()
    row_id = "id SERIAL PRIMARY KEY" if "postgresql" in home.registry_url else "id INTEGER NOT NULL PRIMARY KEY"
    execute(home, *(statement.format(id=row_id) for statement in FORMAT_1))
    return home


def columns(home: Home) -> dict[str, dict[str, bool]]:
    database = Database.connect(home.registry_url)
    inspector = inspect(database.engine)
    found = {
        table: {column["name"]: column["nullable"] for column in inspector.get_columns(table)}
        for table in Base.metadata.tables
    }
    database.close()
    return found


def test_a_home_of_format_1_goes_on(old_home: Home, open_registry: Callable[[], Registry]) -> None:
    registry = open_registry()
    assert registry.domain("mini", "shoes").folders == ("p/shoes@1", "p/shop@1", "p/general@1")
    assert registry.domain("mini", "shop", 1).metrics == {"tokens": 5}
    (entry,) = registry.hplms()
    assert (entry.key, entry.id, entry.version, entry.domain.label) == (103, "acme/x", 2, "shoes@1")
    assert (entry.labels, entry.metrics, entry.pinned) == (("a", "b"), {"dev_accuracy": 0.9}, None)
    assert [version.is_live for version in registry.hplm_versions("acme/x")] == [False, True]
    assert [version.retired_at is None for version in registry.hplm_versions("acme/x")] == [False, True]
    assert [version.retired_at is None for version in registry.domain_versions("mini", "shop")] == [False, True]
    assert (registry.next_hplm_version("acme/gone"), registry.next_domain_version("mini", "shop")) == (5, 3)
    assert registry.rollback_hplm("acme/x").key == 102
    assert registry.rollback_domain("mini", "shop").label == "shop@1"
    shop = registry.domain("mini", "shop")
    assert registry.publish_hplm("acme/gone", shop, "classification", ["a"], "b", {}).version == 5


def test_the_tables_are_those_of_a_new_home(old_home: Home, open_registry: Callable[[], Registry]) -> None:
    open_registry()
    declared = {
        name: {column.name: bool(column.nullable) for column in table.columns}
        for name, table in Base.metadata.tables.items()
    }
    assert columns(old_home) == declared


def test_a_server_opens_a_home_of_format_1(old_home: Home) -> None:
    snapshot = RegistrySnapshot(Registry.open(old_home))
    try:
        assert snapshot.find("acme/x").key == 103
    finally:
        snapshot.close()


def test_many_processes_open_an_old_home_at_once(old_home: Home, open_registry: Callable[[], Registry]) -> None:
    opened: list[Registry] = []
    threads = [threading.Thread(target=lambda: opened.append(open_registry())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(registry.hplms()) for registry in opened] == [1] * 6
    with opened[0]._database.reading() as session:
        assert session.connection().exec_driver_sql("SELECT format_version FROM state").scalar_one() == (
            REGISTRY_FORMAT_VERSION
        )
    opened[0].audit.read().require_sound()  # the slower ones have made no revision


def test_a_build_of_the_old_release_may_end_after_the_migration(
    old_home: Home, open_registry: Callable[[], Registry]
) -> None:
    registry = open_registry()
    execute(
        old_home,
        "INSERT INTO domains (root_id, name, live_version) VALUES (1, 'late', 1)",
        """INSERT INTO domain_versions (domain_id, version, parent_id, folder, metrics) VALUES
           (4, 1, 3, 'p/late@1', '{}'), (2, 3, 1, 'p/shop@3', '{}')""",
        "UPDATE domains SET live_version = 3 WHERE name = 'shop'",
        "INSERT INTO hplms (name, live_version_id, revision) VALUES ('acme/late', 105, 8)",
        """INSERT INTO hplm_versions (id, hplm_id, version, domain_version_id, task, labels, folder, metrics) VALUES
           (105, 3, 1, 5, 'classification', '["a"]', 'b/acme--late@1', '{}')""",
    )
    late = ("p/late@1", "p/shop@2", "p/general@1")
    assert registry.domain("mini", "late").folders == registry.hplm("acme/late").domain.folders == late
    assert late in [domain.folders for domain in registry.domains()]
    versions = registry.next_domain_version("mini", "late"), registry.next_domain_version("mini", "shop")
    assert (*versions, registry.next_hplm_version("acme/late")) == (2, 4, 2)
    shop = registry.domain("mini", "shop")
    assert registry.publish_hplm("acme/late", shop, "classification", ["a"], "b", {}).version == 2
    assert registry.publish_domain("mini", "shop", "p/shop@4", registry.domain("mini", "general"), {}).version == 4
