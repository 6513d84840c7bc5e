"""The server's view: brought up to date by itself, and bounded."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from backends.errors import NotFoundError, UnauthorisedError
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import Role
from seeds import SEED
from waiting import LIMIT_S, wait_until


@pytest.fixture
def snapshot(registry: Registry, open_registry: Callable[[], Registry]) -> Iterator[RegistrySnapshot]:
    snapshot = RegistrySnapshot(open_registry(), retired_kept_s=0.4)
    yield snapshot
    snapshot.close()


def publish(registry: Registry, hplm: str, domain: str = "general") -> int:
    tuned_on = registry.find_domain("mini", domain)
    return registry.publish_hplm(hplm, tuned_on, "classification", ["a"], "bank/x", {}).key


def publish_domain(registry: Registry, name: str) -> str:
    version = registry.next_domain_version("mini", name)
    folder = f"plots/mini/{name}@{version}"
    registry.publish_domain("mini", name, folder, registry.domain("mini", "general"), {})
    return folder


def test_it_sees_publications_by_itself(registry: Registry, snapshot: RegistrySnapshot) -> None:
    with pytest.raises(NotFoundError, match="acme/x"):
        snapshot.find("acme/x")
    old = publish(registry, "acme/x")
    new = publish(registry, "acme/x")
    wait_until(lambda: [entry.key for entry in snapshot.live()] == [new])
    snapshot.look_up([old])  # it may have gone live between two refreshes
    assert snapshot.by_key(old).version == 1  # requests in flight finish on the version they started with
    registry.rollback_hplm("acme/x")
    wait_until(lambda: snapshot.find("acme/x").key == old)
    registry.delete_hplm("acme/x")
    wait_until(lambda: not snapshot.live())


def test_what_it_remembers_is_bounded(registry: Registry, snapshot: RegistrySnapshot) -> None:
    keys = {hplm: publish(registry, hplm) for hplm in ("acme/x", "acme/y")}
    chance = random.Random(SEED)
    for _ in range(30):
        hplm = chance.choice(sorted(keys))
        snapshot.look_up([keys[hplm]])
        keys[hplm] = publish(registry, hplm)
        snapshot.refresh()
        if chance.random() < 0.3:
            keys[hplm] = registry.rollback_hplm(hplm).key
            snapshot.refresh()
    wait_until(lambda: set(snapshot._by_key) == set(keys.values()))
    assert not snapshot._retired_at
    assert snapshot.live_folders() == {"plots/mini/general@1"}


def test_folders_stay_live_for_as_long_as_requests_may_need_them(
    registry: Registry, snapshot: RegistrySnapshot
) -> None:
    first = publish_domain(registry, "shop")
    publish(registry, "acme/x", "shop")
    snapshot.refresh()
    assert snapshot.live_folders() == {first, "plots/mini/general@1"}
    second = publish_domain(registry, "shop")
    publish(registry, "acme/x", "shop")
    snapshot.refresh()
    assert snapshot.live_folders() == {first, second, "plots/mini/general@1"}
    wait_until(lambda: snapshot.live_folders() == {second, "plots/mini/general@1"})


def test_new_domains_are_prepared_before_they_go_live(
    registry: Registry, snapshot: RegistrySnapshot, caplog: pytest.LogCaptureFixture
) -> None:
    prepared: list[str] = []

    def prepare(domain: DomainEntry) -> None:
        prepared.append(domain.label)
        assert set(domain.folders) <= snapshot.live_folders()  # nobody closes it before it is live
        for hplm in ("acme/x", "acme/y"):
            with pytest.raises(NotFoundError):
                snapshot.find(hplm)
        raise OSError("damaged")

    publish_domain(registry, "shop")
    snapshot.prepare_with(prepare)
    publish(registry, "acme/x", "shop")
    wait_until(lambda: bool(snapshot.live()))
    assert prepared == ["shop@1"]
    assert "domain shop@1 cannot be served: damaged" in caplog.text
    publish(registry, "acme/y", "shop")
    snapshot.refresh()
    assert {entry.id for entry in snapshot.live()} == {"acme/x", "acme/y"}
    snapshot.prepare_with(None)
    publish(registry, "acme/z")
    snapshot.refresh()
    assert prepared == ["shop@1"]


def test_nothing_else_waits_for_a_domain_that_is_prepared(registry: Registry, snapshot: RegistrySnapshot) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def prepare(_: DomainEntry) -> None:
        begun.set()
        assert may_end.wait(2 * LIMIT_S)

    def is_valid(text: str) -> bool:
        try:
            snapshot.tokens.require(text, Role.CALLER)
        except UnauthorisedError:
            return False
        return True

    leaked, gone = registry.tokens.create("acme"), publish(registry, "acme/gone")
    wait_until(lambda: is_valid(leaked.text) and snapshot.knows(gone))
    snapshot.prepare_with(prepare)
    publish_domain(registry, "shop")
    for hplm in ("acme/x", "acme/dropped", "acme/general"):
        publish(registry, hplm, "shop")
    assert begun.wait(LIMIT_S)
    registry.tokens.revoke(leaked.entry.id)
    registry.quotas.set("acme", {"weight": 3.0})
    for hplm in ("acme/gone", "acme/dropped"):
        registry.delete_hplm(hplm)
    for hplm in ("acme/other", "acme/general"):
        publish(registry, hplm)
    publish(registry, "acme/late", "shop")
    wait_until(lambda: {entry.id for entry in snapshot.live()} == {"acme/other", "acme/general"})
    assert not is_valid(leaked.text)
    assert snapshot.quotas.weights == {"acme": 3.0}
    wait_until(lambda: "acme/late" in snapshot._coming)
    wait_until(lambda: snapshot.age_s < 1)
    may_end.set()
    snapshot.refresh()
    expected = {"acme/other": "general", "acme/general": "general", "acme/x": "shop", "acme/late": "shop"}
    assert {entry.id: entry.domain.name for entry in snapshot.live()} == expected
