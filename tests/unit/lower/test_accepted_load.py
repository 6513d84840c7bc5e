from __future__ import annotations

import random

import pytest

from backends.lower.accepted_load import AcceptedLoad, Work
from seeds import SEED

_TENANTS = ("acme", "globex", "initech", "hooli")


def test_a_row_waits_for_its_tenants_load_and_for_no_more_of_each_other_tenant() -> None:
    """Rows come, leave and are told at random; the reference adds up every row that is not told."""
    rng, load = random.Random(SEED), AcceptedLoad()
    waiting: list[Work] = []
    forwarded: list[tuple[int, Work]] = []
    for now_us in range(0, 10_000_000, 10_000):
        work = Work(rng.choice(_TENANTS), rng.choice((0.0, 100.0, 1e6 * rng.random())), rng.randint(1, 50))
        chance = rng.random()
        if chance < 0.4:
            load.accept(work)
            waiting.append(work)
        elif chance < 0.5:
            load.forward(work, now_us, was_accepted=False)
            forwarded.append((now_us, work))
        elif waiting and chance < 0.6:
            load.drop(waiting.pop(rng.randrange(len(waiting))))
        elif waiting:
            work = waiting.pop(0)
            load.forward(work, now_us)
            forwarded.append((now_us, work))
        if rng.random() < 0.1:
            load.forget_told(now_us)
            forwarded = [(at_us, work) for at_us, work in forwarded if at_us >= now_us - 15_000]
        counted = [*waiting, *(work for _, work in forwarded)]
        of_tenant = {tenant: sum(work.us for work in counted if work.tenant == tenant) for tenant in _TENANTS}
        own_us, row_us = of_tenant.pop(tenant := rng.choice(_TENANTS)), 1e6 * rng.random()
        ahead_us = own_us + sum(min(own_us + row_us, us) for us in of_tenant.values())
        assert load.ahead_us(tenant, row_us) == pytest.approx(ahead_us, rel=1e-9, abs=0.1)
        assert load.forwarded_tokens == sum(work.num_tokens for _, work in forwarded)
