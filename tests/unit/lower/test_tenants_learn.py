"""What tables learn from one tenant alone stays off the disk of a shared domain, and takes no others' room."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from filling_serving import ask, fresh_words, serving, wait_until

from backends.home import Home
from backends.lower import filling
from backends.lower.settings import Missing
from backends.plot.askers import SEVERAL, asked_by, asker_number
from backends.plot.header import Store
from backends.plot.overlay import KEPT_S
from backends.plot.overlay_log import FragmentLayout, overlay_folder, overlay_keys
from backends.plot.overlay_pool import OverlayPool
from backends.registry.registry import Registry
from seeds import SEED

GLOBEX, INITECH = "globex/topic", "initech/mood"  # both of the domain street
LAYOUT = FragmentLayout(3, 12)
RNG = np.random.default_rng(SEED)


def num_written(home: Home) -> int:
    table = home.path / Registry.open(home).hplm(GLOBEX).domain.folders[0]
    return int(overlay_keys(table, Store.TRI.key_dtype).keys.size)


@pytest.mark.usefixtures("quick_upkeep")
@pytest.mark.parametrize("missing", [Missing.COMPUTE, Missing.LEARN])
def test_only_what_several_tenants_ask_gets_to_disk(home: Home, missing: Missing) -> None:
    mine, ours = " ".join(fresh_words(12)), " ".join(fresh_words(12))
    with serving(home, missing, is_private=False) as service:
        ask(service, [(GLOBEX, mine), (GLOBEX, ours)])
        wait_until(lambda: service.domains.figures().entries > 10)
        time.sleep(0.2)
        assert num_written(home) == 0
        wait_until(lambda: bool(ask(service, [(INITECH, ours)])) and num_written(home) > 5)
        time.sleep(0.2)
        assert num_written(home) < service.domains.figures().entries
        ask(service, [(GLOBEX, ours), (INITECH, ours)])
    assert num_written(home) <= 12 + 2


@pytest.mark.usefixtures("quick_upkeep")
def test_a_call_of_two_tenants_writes_what_both_ask(home: Home) -> None:
    text = " ".join(fresh_words(12))
    with serving(home, Missing.COMPUTE, is_private=False) as service:
        ask(service, [(GLOBEX, text), (INITECH, text)])
        wait_until(lambda: num_written(home) == service.domains.figures().entries > 5)


def test_a_domain_of_one_tenant_is_private_and_one_of_two_is_not(home: Home) -> None:
    with serving(home, Missing.COMPUTE, is_private=False) as service:
        service.warm_up()
        private = {one.overlay.name: one.overlay.is_private for one in service.domains.fillings()}
        assert private == {"farm@1/overlay": True, "street@1/overlay": False}
        entries = Registry.open(home).hplms()
        service.domains.note_tenants([entry for entry in entries if entry.id != INITECH])
        assert all(one.overlay.is_private for one in service.domains.fillings())


def test_who_asked_for_each_distinct_key() -> None:
    keys = RNG.integers(0, 30, 200)
    askers = RNG.integers(1, 4, 200).astype(np.uint32)
    first, by = asked_by(keys, askers)
    assert keys[first].tolist() == sorted(set(keys.tolist()))
    for key, asker in zip(keys[first].tolist(), by.tolist(), strict=True):
        names = set(askers[keys == key].tolist())
        assert asker == (names.pop() if len(names) == 1 else SEVERAL)
    assert asked_by(keys[:0], askers[:0])[0].size == 0


def test_a_tenant_alone_takes_no_more_than_half_of_a_full_pool() -> None:
    pool = OverlayPool(400 * OverlayPool(1 << 20, LAYOUT).row_bytes, LAYOUT)
    owner, keys = pool.new_owner(), np.unique(RNG.integers(1, 1 << 40, 5_000)).astype(np.uint64)

    def add(chosen: np.ndarray, asker: int) -> None:
        vectors = np.zeros((chosen.size, LAYOUT.width), np.float16)
        ones = np.ones(chosen.size, np.uint32)
        pool.add(owner, chosen, vectors, ones, np.full(chosen.size, asker, np.uint32))

    good, flood = keys[:150], keys[150:]
    add(good, asker_number("acme"))
    for start in range(0, flood.size, 50):
        add(flood[start : start + 50], asker_number("globex"))
    assert pool.contains(owner, good).sum() > 130, "the flood makes room among its own"
    assert pool.contains(owner, flood[-50:]).all(), "and what is newest is there"


def test_a_tenant_alone_wants_no_more_than_half_of_what_is_learned(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_MOST_WANTED", 100)
    monkeypatch.setattr("backends.lower.upkeep.SYNC_EVERY_S", 600.0)
    with serving(home, Missing.LEARN) as service:
        service.domains.lower_model(Registry.open(home).hplm(GLOBEX).domain)
        (one,) = service.domains.fillings()
        keys = np.arange(5, 205, dtype=np.uint64)
        for part, tenant, times in ((keys[:40], 1, 1), (keys[40:], 2, 3)):
            repeated = np.repeat(part, times)
            one.want(repeated, np.full(repeated.size, tenant, np.uint32))
        by = Counter(one._wanted_by.values())
        assert (by[1], by[2]) == (37, 38)
        assert len(one._wanted) == 75


def test_logs_to_which_nothing_was_added_for_long_are_removed(home: Home) -> None:
    text = " ".join(fresh_words(12))
    with serving(home, Missing.COMPUTE) as service:
        ask(service, [(GLOBEX, text)])
    (log,) = overlay_folder(home.path / Registry.open(home).hplm(GLOBEX).domain.folders[0]).glob("*.log")
    for age_s, is_kept in ((KEPT_S - 3600, True), (KEPT_S + 3600, False)):
        os.utime(log, (time.time() - age_s,) * 2)
        with serving(home, Missing.COMPUTE) as service:
            service.warm_up()
            assert (service.domains.figures().entries > 0) == is_kept
            assert log.exists() == is_kept and isinstance(log, Path)
