from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from filling_serving import IDS, ask, fresh_rows, serving, wait_until

from backends import metrics
from backends.home import Home
from backends.lower.metrics import LowerMetrics
from backends.lower.service import LowerService
from backends.lower.settings import Missing
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry

Figure = tuple[str, frozenset[tuple[str, str]]]
LOOKED_UP = "hplm_plot_fragments_total"


NO_QUEUE: Any = SimpleNamespace(num_rows=0)


class Endpoint:
    """Stands where Triton's own module does, which only a server has: families, metrics, and what they show."""

    def __init__(self) -> None:
        self.values: dict[Figure, float] = {}
        self.failures = 0

    @property
    def MetricFamily(self) -> Any:
        endpoint = self

        class Metric:
            def __init__(self, name: str, labels: dict[str, str]) -> None:
                self._key = (name, frozenset(labels.items()))

            def increment(self, by: float) -> None:
                if endpoint.failures:
                    endpoint.failures -= 1
                    raise RuntimeError("the server is busy")
                assert by > 0
                endpoint.values[self._key] = endpoint.values.get(self._key, 0) + by

            def set(self, value: float) -> None:
                endpoint.values[self._key] = value

            def __del__(self) -> None:
                endpoint.values.pop(self._key, None)

        class Family:
            COUNTER, GAUGE = "counter", "gauge"

            def __init__(self, name: str, description: str, kind: str) -> None:
                self._name = name

            def Metric(self, labels: dict[str, str]) -> Metric:
                return Metric(self._name, labels)

        return Family

    def looked_up(self, root: str, level: str) -> float:
        return self.values.get((LOOKED_UP, frozenset({("root", root), ("level", level)})), 0)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setattr(metrics, "INTERVAL_S", 0.03)
    return Endpoint()


@pytest.fixture
def service(home: Home, quick_upkeep: None) -> Iterator[LowerService]:
    with serving(home, Missing.COMPUTE) as running:
        yield running


def test_figures_of_two_roots_stay_apart(home: Home, endpoint: Endpoint) -> None:
    other = DomainEntry("large", "general", 1, ("plots/large/general@1",))
    # With its usual upkeep: a quick one may drop the figures of a root without a live domain before they are reported.
    with serving(home, Missing.COMPUTE) as service, closing(LowerMetrics(endpoint, service, NO_QUEUE, "one")):
        ask(service, fresh_rows(8))
        service.domains.note(other, {"general@1": 7})
        own = service.domains.hits()["tiny", "general@1"]
        wait_until(lambda: endpoint.looked_up("large", "general@1") == 7)
        assert endpoint.looked_up("tiny", "general@1") == own


def test_a_failed_report_is_made_up_for(
    service: LowerService, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.failures = 3
    reporting = LowerMetrics(endpoint, service, NO_QUEUE, "one")
    ask(service, fresh_rows(16))
    expected = service.domains.hits()["tiny", "farm@1/computed"]
    assert expected > 0
    wait_until(lambda: endpoint.looked_up("tiny", "farm@1/computed") == expected)
    assert "the server is busy" in caplog.text
    reporting.close()
    assert not any(thread.name == "lower-metrics" for thread in threading.enumerate())


def test_levels_of_retired_versions_leave_the_endpoint(service: LowerService, endpoint: Endpoint, home: Home) -> None:
    reporting = LowerMetrics(endpoint, service, NO_QUEUE, "one")
    ask(service, [*fresh_rows(16), (IDS[0], "cat")])
    wait_until(lambda: endpoint.looked_up("tiny", "farm@1/computed") > 0)
    for hplm in ("acme/topic", "acme/mood"):
        Registry.open(home).delete_hplm(hplm)
    wait_until(lambda: endpoint.looked_up("tiny", "farm@1/computed") == 0)
    assert endpoint.looked_up("tiny", "street@1/computed") > 0
    reporting.close()
