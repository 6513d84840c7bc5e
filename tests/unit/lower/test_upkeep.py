from __future__ import annotations

import threading
import time

import pytest

from backends.home import Home
from backends.lower import upkeep
from backends.lower.domains import OpenDomains
from backends.lower.settings import FillingSettings
from backends.lower.upkeep import Upkeep
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from waiting import LIMIT_S, wait_until

BATCH_S = 0.04


class Busy:
    """A domain that always lacks something; learning a batch takes a known time."""

    def __init__(self) -> None:
        self.overlay = self
        self.stopping = threading.Event()
        self.learned = 0
        self.begun_late = 0
        self.synced = 0

    def learn_some(self) -> bool:
        self.begun_late += self.stopping.is_set()
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
    started_s = time.monotonic()
    running = Upkeep(domains, snapshot)
    for each in domains.busy:
        each.stopping = running._stopping
    wait_until(lambda: min(min(each.learned - 1, each.synced - 6) for each in domains.busy) > 0)
    running.close()
    snapshot.close()
    learned = [each.learned for each in domains.busy]
    assert sum(learned) * BATCH_S < 0.3 * (time.monotonic() - started_s)
    assert min(learned) >= max(learned) - 1
    assert sum(each.begun_late for each in domains.busy) <= 1, "the end waits for one batch at most"


def test_a_long_rest_does_not_put_off_the_end(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_REST", 10_000.0)
    monkeypatch.setattr(upkeep, "SYNC_EVERY_S", 0.05)
    assert 2 * LIMIT_S < 10_000.0 * BATCH_S, "the rest"
    snapshot = RegistrySnapshot(Registry.open(tiny_home))
    domains = BusyDomains(tiny_home, 1)
    running = Upkeep(domains, snapshot)
    wait_until(lambda: domains.busy[0].synced > 3)
    started_s = time.monotonic()
    running.close()
    assert time.monotonic() - started_s < LIMIT_S
    snapshot.close()
    assert domains.busy[0].learned == 1
