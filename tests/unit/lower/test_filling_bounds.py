"""What filling may cost: on the spot, in the background, after a failure."""

from __future__ import annotations

import shutil
import threading
from functools import partial

import numpy as np
import pytest
from filling_serving import ask, ask_with_tickets, fresh_rows, fresh_words, serving, shortened, wait_until

from backends.home import Home
from backends.lower import domains as domains_module
from backends.lower import filling, upkeep
from backends.lower.domains import OpenDomains
from backends.lower.filling import DomainFilling
from backends.lower.service import LowerService
from backends.lower.settings import FillingSettings, Missing
from backends.plot.arrays import Keys
from backends.plot.askers import SEVERAL
from backends.plot.keys import pack
from backends.plot.overlay_log import log_keys, overlay_folder
from backends.registry.registry import Registry
from seeds import SEED

RNG = np.random.default_rng(SEED)


@pytest.fixture
def no_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when the test is over."""
    monkeypatch.setattr(upkeep, "SYNC_EVERY_S", 600.0)


def filling_of(service: LowerService, home: Home) -> DomainFilling:
    service.domains.lower_model(Registry.open(home).hplm("acme/topic").domain)
    (one,) = service.domains.fillings()
    return one


def want(one: DomainFilling, keys: Keys, tenant: int = SEVERAL) -> None:
    one.want(keys, np.full(keys.size, tenant, np.uint32))


def random_keys(count: int) -> Keys:
    """Distinct, the greatest last."""
    return np.unique(pack(RNG.integers(5, 40, (4 * count, 3))))[-count:]


@pytest.mark.usefixtures("quick_upkeep")
def test_one_call_computes_no_more_than_its_limit_and_learns_the_rest(home: Home) -> None:
    rows = fresh_rows(60)
    with serving(home, Missing.COMPUTE, compute_limit=20) as service:
        ask(service, rows)
        assert service.domains.events()["computed"] == 20  # of both domains together
        missing = shortened(service)
        assert missing > 100
        ask(service, fresh_rows(60))
        assert service.domains.events()["computed"] == 40
        wait_until(lambda: service.domains.events()["learned"] > missing // 4)


@pytest.mark.usefixtures("no_upkeep")
def test_texts_that_lack_little_are_exact_when_the_limit_is_reached(home: Home) -> None:
    """One text of each domain lacks much, and comes first."""
    long_rows = [(hplm, " ".join(fresh_words(40))) for hplm in ("acme/topic", "globex/topic")]
    short_rows = [(hplm, " ".join(fresh_words(3))) for hplm in ("acme/mood", "initech/mood") for _ in range(4)]
    with serving(home, Missing.COMPUTE) as service:
        exact = ask(service, short_rows)
        limit = service.domains.events()["computed"] + 10  # far less than one long text lacks
    shutil.rmtree(overlay_folder(home.plot("tiny", "farm", 1)))
    shutil.rmtree(overlay_folder(home.plot("tiny", "street", 1)))
    with serving(home, Missing.COMPUTE, compute_limit=limit) as service:
        limited, tickets = ask_with_tickets(service, [*long_rows, *short_rows])
        assert service.domains.events()["computed"] == limit
        assert service.domains.events()["beyond_limit"] > 0
        assert all(np.array_equal(one, other) for one, other in zip(limited[2:], exact, strict=True))
        assert [ticket.exact for ticket in tickets] == [False, False, *[True] * len(short_rows)]
        again = ask_with_tickets(service, short_rows)[1]
        assert all(ticket.computing_us > 0 for ticket in tickets[2:])
        assert all(ticket.exact and ticket.computing_us == 0 for ticket in again)


@pytest.mark.usefixtures("no_upkeep")
def test_a_domain_that_gets_none_of_the_limit_is_not_taken_for_broken(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Texts of the other domain lack less, so all of the limit is theirs."""
    farm = [("acme/topic", " ".join(fresh_words(4))) for _ in range(12)]
    street = [("globex/topic", " ".join(fresh_words(40)))]
    with serving(home, Missing.COMPUTE, compute_limit=8) as service:
        ask(service, [*farm, *street])
        events = service.domains.events()
        assert events["computed"] == 8 and not any(one.is_broken for one in service.domains.fillings())
        ask(service, [("globex/topic", " ".join(fresh_words(4)))])
        assert service.domains.events()["computed"] > 8
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.usefixtures("no_upkeep")
def test_a_first_request_does_not_wait_for_lower_layers(home: Home) -> None:
    """They are in memory after the warm-up: the files may go."""
    with serving(home, Missing.COMPUTE) as service:
        service.warm_up()
        for weights in home.path.rglob("lower.safetensors"):
            weights.unlink()
        ask(service, fresh_rows(20))
        assert service.domains.events()["computed"] > 50
        assert shortened(service) == 0


@pytest.mark.usefixtures("quick_upkeep")
@pytest.mark.parametrize("missing", [Missing.COMPUTE, Missing.LEARN])
def test_after_a_failure_filling_is_tried_again(home: Home, missing: Missing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "RETRY_AFTER_S", 0.2)
    weights = home.root("tiny") / "lower.safetensors"
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-10])
    with serving(home, missing) as service:
        ask(service, fresh_rows(20))
        wait_until(lambda: service.domains.events()["failed"] > 0)
        events = service.domains.events()
        assert events["computed"] == events["learned"] == 0
        weights.write_bytes(sound)
        rows = fresh_rows(20)

        def is_filled() -> bool:
            ask(service, rows)
            return service.domains.events()["computed"] + service.domains.events()["learned"] > 50

        wait_until(is_filled)


@pytest.mark.usefixtures("no_upkeep")
def test_the_most_wanted_is_learned_first(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """New fragments without end, each wanted once, and one that comes back; by its key it is always the last."""
    monkeypatch.setattr(filling, "_LEARNED_AT_ONCE", 2)
    monkeypatch.setattr(filling, "_MOST_WANTED", 60)
    keys = random_keys(1_001)
    hot = keys[-1:]
    with serving(home, Missing.LEARN) as service:
        one = filling_of(service, home)
        for start in range(0, 1_000, 100):
            want(one, np.concatenate([keys[start : start + 100], np.repeat(hot, 50)]))
            one.learn_some()
        assert one.overlay.contains(hot).all()


@pytest.mark.usefixtures("no_upkeep")
def test_distinct_fragments_are_dropped_and_no_more_than_needed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_MOST_WANTED", 40)
    keys = random_keys(50)
    with serving(home, Missing.LEARN) as service:
        one = filling_of(service, home)
        want(one, np.repeat(keys[:40], 5))
        assert service.domains.events()["dropped"] == 0
        want(one, np.repeat(keys[40:], 9))
        assert service.domains.events()["dropped"] == 20
        one.learn_some()
        assert service.domains.events()["learned"] == 30
        assert one.overlay.contains(keys[40:]).all()


def test_a_domain_opened_while_others_are_let_go_stays_open(home: Home) -> None:
    domain = Registry.open(home).hplm("acme/topic").domain
    domains = OpenDomains(home, FillingSettings(Missing.COMPUTE))
    opening = threading.Thread(target=domains.lower_model, args=(domain,))

    def live_folders() -> frozenset[str]:
        """Nothing is live when this is asked, and the domain is opened a moment later."""
        opening.start()
        opening.join(0.3)
        return frozenset()

    domains.close_unread(live_folders)
    opening.join()
    assert len(domains.fillings()) == 1
    domains.close()


def test_evictions_stay_counted_when_a_root_is_closed(home: Home) -> None:
    with serving(home, Missing.COMPUTE, overlay_mb=1) as service:
        for _ in range(8):
            ask(service, fresh_rows(64))
        evicted = service.domains.events()["evicted"]
        assert evicted > 0
        service.domains.close_unread(frozenset)
        assert service.domains.events()["evicted"] == evicted


def test_levels_of_closed_domains_are_forgotten(home: Home) -> None:
    registry = Registry.open(home)
    with serving(home, Missing.COMPUTE) as service:
        ask(service, fresh_rows(8))
        street = registry.hplm("globex/topic").domain
        service.domains.close_unread(partial(frozenset, street.folders))
        levels = {level for _, level in service.domains.hits()}
        assert {"street@1", "street@1/computed", "general@1"} <= levels
        assert not any(level.startswith("farm@1") for level in levels)


@pytest.mark.usefixtures("no_upkeep")
def test_what_waits_for_the_disk_is_bounded_for_all_domains_together(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domains_module, "MOST_UNWRITTEN", 30)
    monkeypatch.setattr(upkeep, "SYNC_EVERY_S", 60.0)  # what is written makes room for more
    with serving(home, Missing.COMPUTE) as service:
        ask(service, fresh_rows(60))
        assert service.domains.figures().entries > 100
    registry = Registry.open(home)
    tables = {home.path / registry.hplm(hplm).domain.folders[0] for hplm in ("acme/topic", "globex/topic")}
    logs = [path for table in tables for path in overlay_folder(table).glob("*.log")]
    assert sum(log_keys(path, np.dtype(np.uint64)).size for path in logs) == 30
