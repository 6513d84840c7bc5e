"""Quotas in the registry, and what a server knows of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from registry_behind import downgrade

from backends.errors import ConflictError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.access import AccessQuotas
from backends.registry.quotas import Quota, TenantQuota
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from waiting import wait_until


def publish(registry: Registry, hplm: str) -> None:
    registry.publish_hplm(hplm, registry.domain("mini", "general"), "classification", ["a"], "bank/x", {})


def test_quotas_are_set_shown_and_removed(registry: Registry) -> None:
    assert registry.quotas.of("acme") == Quota()
    registry.quotas.set("acme", {"weight": 3.0, "rows_per_s": 100.0})
    assert registry.quotas.set("acme", {"rows_per_s": 50.0, "hplms": 2}) == Quota(3.0, 50.0, hplms=2)
    registry.quotas.set("globex", {"waiting_rows": 5})
    assert [(entry.tenant, entry.quota) for entry in registry.quotas.all()] == [
        ("acme", Quota(3.0, 50.0, hplms=2)),
        ("globex", Quota(waiting_rows=5)),
    ]
    assert registry.quotas.remove("acme", ["weight", "hplms"]) == Quota(rows_per_s=50.0)
    assert registry.quotas.remove("acme") == Quota()
    assert [entry.tenant for entry in registry.quotas.all()] == ["globex"]
    with pytest.raises(NotFoundError, match="tenant 'acme' has no quota"):
        registry.quotas.remove("acme")


@pytest.mark.parametrize(
    ("tenant", "changes", "words"),
    [
        ("acme/x", {"weight": 1.0}, "tenant name 'acme/x' is not allowed"),
        ("acme", {}, "name at least one quota"),
        ("acme", {"weight": 0.0}, "a weight is 0.001 to 1000, not 0"),
        ("acme", {"weight": float("nan")}, "a weight is 0.001 to 1000, not nan"),
        ("acme", {"rows_per_s": 0.0}, "rows_per_s must be above 0, not 0"),
        ("acme", {"bytes_per_s": float("inf")}, "bytes_per_s must be above 0"),
        ("acme", {"waiting_rows": -1}, "waiting_rows must be above 0, not -1"),
        ("acme", {"hplms": -1}, "hplms must be 0 or more, not -1"),
    ],
)
def test_quotas_that_cannot_be_are_rejected(
    registry: Registry, tenant: str, changes: dict[str, float], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        registry.quotas.set(tenant, changes)
    assert registry.quotas.all() == []
    with pytest.raises(InvalidArgumentError, match="quota 'rows' is not one of weight, rows_per_s"):
        registry.quotas.remove("acme", ["rows"])


def test_a_running_server_goes_by_changes(registry: Registry, open_registry: Callable[[], Registry]) -> None:
    registry.quotas.set("acme", {"weight": 2.0, "rows_per_s": 5.0})
    snapshot = RegistrySnapshot(open_registry())
    weights, rates = snapshot.quotas.weights, snapshot.quotas.rates
    try:
        assert (weights, rates["acme"].quota.rows_per_s) == ({"acme": 2.0}, 5.0)
        registry.quotas.set("acme", {"weight": 4.0})
        registry.quotas.set("globex", {"waiting_rows": 7})
        registry.quotas.remove("acme", ["rows_per_s"])
        expected = {"acme": 4.0}, {}, {"globex": 7}
        wait_until(lambda: (weights, rates, snapshot.quotas.waiting_rows) == expected)
    finally:
        snapshot.close()


def test_a_tenant_has_no_more_hplms_than_its_quota_says(registry: Registry) -> None:
    registry.quotas.set("acme", {"hplms": 2})
    for hplm in ("acme/x", "acme/y", "acme2/z", "acme/x"):
        publish(registry, hplm)
    for add in (publish, Registry.require_room):
        with pytest.raises(ConflictError, match=r"tenant 'acme' has 2 hPLMs, as many as it may \(quota hplms\)"):
            add(registry, "acme/z")
    registry.delete_hplm("acme/y")
    publish(registry, "acme/z")
    registry.quotas.remove("acme")
    publish(registry, "acme/y")


def test_quotas_that_a_restored_registry_lacks_are_gone() -> None:
    quotas, kept = AccessQuotas(), TenantQuota("acme", 1, Quota(weight=2.0))
    weights = quotas.weights
    quotas.apply([kept, TenantQuota("globex", 2, Quota(weight=3.0, rows_per_s=1.0))])
    quotas.apply([kept], is_whole=True)
    assert weights == {"acme": 2.0} and quotas.rates == {}


def test_a_home_of_format_2_gets_the_table_of_quotas(
    registry: Registry, home: Home, open_registry: Callable[[], Registry]
) -> None:
    downgrade(home, 2, "DROP TABLE quotas")
    assert open_registry().quotas.all() == []


def test_quotas_of_a_home_of_format_3_stay(
    registry: Registry, home: Home, open_registry: Callable[[], Registry]
) -> None:
    registry.quotas.set("acme", {"hplms": 3})
    columns = ("upload_bytes", "running_jobs", "jobs_per_day")
    downgrade(home, 3, *(f"ALTER TABLE quotas DROP COLUMN {name}" for name in columns))
    migrated = open_registry()
    assert migrated.quotas.set("acme", {"jobs_per_day": 5}) == Quota(hplms=3, jobs_per_day=5)
    assert migrated.audit.read().entries[-2].action == "registry.migrate"
