from __future__ import annotations

import time

import pytest

from backends.home import Home
from backends.lower import upkeep
from backends.lower.domains import OpenDomains
from backends.lower.settings import FillingSettings
from backends.lower.upkeep import Upkeep
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot

BATCH_S = 0.04


class Busy:
    """A domain that always lacks something; learning a batch takes a known time."""

    def __init__(self) -> None:
        self.overlay = self
        self.learned = 0
        self.synced = 0

    def learn_some(self) -> bool:
        time.sleep(BATCH_S)
        self.learned += 1
        return True

    def sync(self) -> None:
        self.synced += 1


class BusyDomains(OpenDomains):
    def __init__(self, home: Home, count: int) -> None:
        super().__init__(home, FillingSettings())
        self.busy = [Busy() for _ in range(count)]

    def fillings(self) -> list[Busy]:  # type: ignore[override]
        return self.busy


@pytest.mark.usefixtures("quick_upkeep")
def test_learning_for_many_domains_takes_a_quarter_of_the_time(tiny_home: Home) -> None:
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    domains = BusyDomains(tiny_home, 6)
    running = Upkeep(domains, snapshot)
    started_s = time.monotonic()
    time.sleep(2.0)
    closing_s = time.monotonic()
    running.close()
    assert time.monotonic() - closing_s < 4 * BATCH_S + 0.3
    snapshot.close()
    learned = [each.learned for each in domains.busy]
    assert sum(learned) * BATCH_S < 0.3 * (time.monotonic() - started_s)
    assert min(learned) >= max(learned) - 1 > 0
    assert min(each.synced for each in domains.busy) > 6


def test_a_long_rest_does_not_put_off_the_end(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_REST", 1_000.0)
    monkeypatch.setattr(upkeep, "SYNC_EVERY_S", 0.05)
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    domains = BusyDomains(tiny_home, 1)
    running = Upkeep(domains, snapshot)
    time.sleep(0.6)
    started_s = time.monotonic()
    running.close()
    assert time.monotonic() - started_s < 0.5
    snapshot.close()
    assert domains.busy[0].learned == 1
    assert domains.busy[0].synced > 3
