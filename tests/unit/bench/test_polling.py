"""Pollers are processes that see what is published, and time it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.poller import pollers
from bench.polling import Settings, fill, measure


def test_every_publication_is_refreshed_in_every_process() -> None:
    row = measure("sqlite", Settings(processes_per_server=1, seconds=1.0, servers=2, hplms=50, publications_per_s=2.0))
    assert (row["processes"], row["publications"]) == (2, 2)
    assert 2 <= row["refreshes"] <= 4, "two processes; one that is held up sees both publications in one look"
    assert row["idle looks"] > 4
    assert 0 < row["idle ms p50"] < row["refresh ms p50"] <= row["refresh ms p99"] <= row["slowest ms"] < 1000


def test_pollers_are_servers_that_the_registry_knows(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with closing(Registry.open(home, create=True)) as registry:
        fill(registry, home, 3)
        with pollers(home, 1) as running:
            running.wait_ready()
            assert len(registry.servers.all()) == 1
            assert running.end().refreshes == []
        assert registry.servers.all() == []


def test_a_poller_without_a_registry_is_an_error(tmp_path: Path) -> None:
    with pollers(Home(tmp_path / "none"), 1) as running, pytest.raises(HplmError, match="could not read the registry"):
        running.wait_ready()
