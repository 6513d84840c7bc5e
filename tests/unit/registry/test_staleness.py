"""A registry that is away: told in the log and in figures, served from what was live, as long as the settings say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from backends.errors import InvalidArgumentError, NotFoundError, UnavailableError
from backends.home import REGISTRY_VARIABLE, Home
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import QUERY_PATIENCE_S, RegistrySnapshot
from backends.registry.staleness import Staleness, StalenessSettings
from bench.kit.proxy import Proxy
from waiting import LIMIT_S, wait_until


def publish(registry: Registry, hplm: str) -> None:
    domain = registry.find_domain("mini", "general")
    registry.publish_hplm(hplm, domain, "classification", ["a"], "bank/x", {})


def test_a_registry_that_is_away_is_told_at_once_and_then_each_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view = Staleness(StalenessSettings(200))
    for _ in range(150 * 5):
        now[0] += 0.2
        view.note_failure(OSError("gone"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "not read for 0.2 s; what was live then is served for 200 s more: gone" in caplog.text
    view.require_fresh()
    for _ in range(100 * 5):
        now[0] += 0.2
        view.note_failure(OSError("gone"))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "the registry was not read for 200 s: all requests are rejected until it is"
    ]
    with pytest.raises(UnavailableError, match="longer than this server answers without it"):
        view.require_fresh()
    view.note_read(now[0])
    view.require_fresh()
    assert "the registry is back after 250.0 s" in caplog.text
    assert view.age_s == 0


def test_the_limit_is_a_setting_of_the_model(tmp_path: Path) -> None:
    settings = StalenessSettings(77)
    assert StalenessSettings.from_model(ModelSettings(Home(tmp_path), settings.parameters)) == settings
    assert StalenessSettings.from_model(ModelSettings(Home(tmp_path), {})).limit_s == 86_400
    for wrong in ("0", "soon"):
        with pytest.raises(InvalidArgumentError, match=r"not '?(0|soon)"):
            StalenessSettings.from_model(ModelSettings(Home(tmp_path), {"stale_limit_s": wrong}))


@pytest.fixture
def mini(home: Home) -> Iterator[Registry]:
    with closing(Registry.open(home, create=True)) as registry:
        registry.publish_root("mini", "f00d", "roots/mini", "general", "plots/mini/general@1", {})
        publish(registry, "acme/x")
        yield registry


@pytest.mark.parametrize("home", ["sqlite"], indirect=True)
def test_requests_are_rejected_once_the_registry_was_away_for_too_long(mini: Registry, home: Home) -> None:
    database = home.path / "registry.db"
    with closing(RegistrySnapshot.open(home, StalenessSettings(1))) as snapshot:
        database.rename(home.path / "away.db")
        assert snapshot.find("acme/x").version == 1
        wait_until(lambda: snapshot.age_s > 1)
        with pytest.raises(UnavailableError, match="registry has been away"):
            snapshot.find("acme/x")
        (home.path / "away.db").rename(database)
        wait_until(lambda: snapshot.age_s < 1)
        assert snapshot.find("acme/x").version == 1


@pytest.mark.parametrize("home", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fault", ["closes", "swallows", "slow"])
def test_a_postgres_that_goes_away_and_comes_back(
    mini: Registry, home: Home, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    url = make_url(home.registry_url)
    with Proxy(url.host or "", url.port or 5432) as proxy:
        behind = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        monkeypatch.setenv(REGISTRY_VARIABLE, behind)
        with closing(RegistrySnapshot.open(home)) as snapshot:
            proxy.closes, proxy.swallows = fault == "closes", fault == "swallows"
            proxy.delay_s = 2 * LIMIT_S if fault == "slow" else 0.0
            wait_until(lambda: snapshot.age_s > 0.5)
            publish(mini, "acme/y")
            start = time.monotonic()
            for _ in range(round(2 * LIMIT_S / QUERY_PATIENCE_S)):
                assert snapshot.find("acme/x").version == 1
                with pytest.raises(NotFoundError):
                    snapshot.find("acme/y")
            assert time.monotonic() - start < LIMIT_S, "it asked the registry each time, for a second"
            start = time.monotonic()
            if fault != "closes":
                with pytest.raises(UnavailableError):
                    snapshot.look_up([12345])
                assert time.monotonic() - start < LIMIT_S, "it waited for the answer"
            proxy.mend()
            wait_until(lambda: len(snapshot.live()) == 2)
