from __future__ import annotations

import random

import pytest
import torch
from test_bank import HIDDEN, LAYERS, random_adapter

from backends.adapters.bottleneck import BottleneckAdapter
from backends.adapters.product import Segment, segmented_bottleneck
from backends.adapters.slots import SlotBank, SlotLease, SlotTable, StaleLeaseError
from backends.errors import InvalidArgumentError, UnavailableError

MAX_WIDTH = 6


def table(num_slots: int, dtype: torch.dtype = torch.float32) -> SlotTable:
    return SlotTable(SlotBank.zeros(num_slots, LAYERS, MAX_WIDTH, HIDDEN, dtype, torch.device("cpu")))


def test_eviction_takes_the_least_recently_used_that_is_not_pinned() -> None:
    slots = table(4)
    for key in (1, 2, 3):
        slots.release(slots.acquire(key, random_adapter))
    pinned = slots.acquire(1, random_adapter)
    slots.release(slots.acquire(4, random_adapter))
    assert slots.resident() == [3, 1, 4]
    slots.release(pinned)


def test_a_resident_adapter_is_not_loaded_again() -> None:
    slots = table(3)
    slots.release(slots.acquire(1, random_adapter))

    def load() -> BottleneckAdapter:
        raise AssertionError("loaded again")

    assert slots.acquire(1, load).slot == 1


def test_when_all_slots_are_pinned_nothing_is_evicted() -> None:
    slots = table(3)
    leases = [slots.acquire(key, random_adapter) for key in (1, 2)]
    with pytest.raises(UnavailableError, match="2 adapter slots"):
        slots.acquire(3, random_adapter)
    assert [slots.check(lease) for lease in leases] == [lease.slot for lease in leases]


def test_a_stale_lease_is_never_served() -> None:
    slots = table(2)
    old = slots.acquire(1, random_adapter)
    slots.release(old)
    slots.acquire(2, random_adapter)
    with pytest.raises(StaleLeaseError):
        slots.check(old)
    with pytest.raises(StaleLeaseError):
        slots.check(SlotLease(key=2, slot=1, generation=99))


def test_an_adapter_that_does_not_fit_leaves_the_slots_as_they_were() -> None:
    slots = table(2)
    slots.release(slots.acquire(1, random_adapter))
    with pytest.raises(InvalidArgumentError, match="width 7"):
        slots.acquire(2, lambda: random_adapter(7))
    assert slots.resident() == [1]


def test_a_load_that_fails_leaves_the_slots_as_they_were() -> None:
    slots = table(2)
    slots.release(slots.acquire(1, random_adapter))

    def load() -> BottleneckAdapter:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        slots.acquire(2, load)
    assert slots.resident() == [1]


TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-1}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_segmented_product_against_a_loop_with_slots_reused(dtype: torch.dtype) -> None:
    """Random mixed batches of random widths over few slots: every token gets its own hPLM's adapter, always."""
    chance = random.Random(7)
    torch.manual_seed(7)
    adapters = {key: random_adapter(chance.randint(1, MAX_WIDTH)) for key in range(1, 12)}
    slots = table(5, dtype)
    for _ in range(60):
        keys = chance.sample(sorted(adapters), chance.randint(1, slots.capacity))
        leases = [slots.acquire(key, lambda key=key: adapters[key]) for key in keys]  # type: ignore[misc]
        lengths = [chance.randint(1, 5) for _ in keys]
        states = torch.randn(sum(lengths) + 2, HIDDEN)
        segments, start = [Segment(0, 0, 2)], 2
        expected = [states[:2]]
        layer = chance.randrange(LAYERS)
        for key, lease, length in zip(keys, leases, lengths, strict=True):
            segments.append(Segment(slots.check(lease), start, start + length))
            expected.append(adapters[key].apply(layer, states[start : start + length]))
            start += length
        got = segmented_bottleneck(states.to(dtype), slots.bank, layer, segments)
        scale = torch.cat(expected).abs().max()
        assert (got.float() - torch.cat(expected)).abs().max() <= TOLERANCE[dtype] * max(1.0, 0.2 * float(scale))
        for lease in leases:
            slots.release(lease)
