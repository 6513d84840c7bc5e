from __future__ import annotations

import random

import pytest
import torch

from adapter_reference import KINDS, random_adapters, random_bottleneck
from backends.adapters.adapter_set import AdapterSet
from backends.adapters.device_bank import AdapterBank
from backends.adapters.part_pool import PartPool
from backends.adapters.product import SegmentedAdapters
from backends.adapters.segments import Segment
from backends.adapters.slots import NoFreeSlotError, SlotLease, SlotTable, StaleLeaseError
from backends.errors import InvalidArgumentError, UnavailableError
from backends.root.geometry import RootGeometry
from seeds import SEED

RNG = random.Random(SEED)
GEOMETRY = RootGeometry(100, 16, 24, 4, 1, 2, 32, 2, 1e-12, "gelu")
MAX_WIDTH = 32


def table(num_slots: int) -> SlotTable:
    return SlotTable(AdapterBank(num_slots, GEOMETRY, MAX_WIDTH, torch.float32, torch.device("cpu")))


def adapters(width: int = 4) -> AdapterSet:
    return AdapterSet({"attention": random_bottleneck(RNG, 2, GEOMETRY.hidden_size, width)})


def test_eviction_takes_the_least_recently_used_that_is_not_pinned() -> None:
    slots = table(4)
    for key in (1, 2, 3):
        slots.release(slots.acquire(key, adapters))
    pinned = slots.acquire(1, adapters)
    slots.release(slots.acquire(4, adapters))
    assert slots.resident() == [3, 1, 4]
    slots.release(pinned)


def test_resident_adapters_are_not_loaded_again() -> None:
    slots = table(3)
    slots.release(slots.acquire(1, adapters))

    def load() -> AdapterSet:
        raise AssertionError("loaded again")

    assert slots.acquire(1, load).slot == 1


def test_when_all_slots_are_pinned_nothing_is_evicted() -> None:
    slots = table(3)
    leases = [slots.acquire(key, adapters) for key in (1, 2)]
    with pytest.raises(UnavailableError, match="2 adapter slots"):
        slots.acquire(3, adapters)
    assert [slots.check(lease) for lease in leases] == [lease.slot for lease in leases]


def test_a_stale_lease_is_never_served() -> None:
    slots = table(2)
    old = slots.acquire(1, adapters)
    slots.release(old)
    slots.acquire(2, adapters)
    with pytest.raises(StaleLeaseError):
        slots.check(old)
    with pytest.raises(StaleLeaseError):
        slots.check(SlotLease(key=2, slot=1, generation=99))


def test_a_lease_ends_with_its_filling_though_the_same_adapters_come_back() -> None:
    slots = table(2)
    old = slots.acquire(1, adapters)
    slots.release(old)
    slots.release(slots.acquire(2, adapters))
    back = slots.acquire(1, adapters)
    assert (back.key, back.slot) == (old.key, old.slot)
    with pytest.raises(StaleLeaseError):
        slots.check(old)


def test_adapters_that_do_not_fit_leave_the_slots_as_they_were() -> None:
    slots = table(2)
    slots.release(slots.acquire(1, adapters))
    with pytest.raises(InvalidArgumentError, match="33 wide"):
        slots.acquire(2, lambda: adapters(MAX_WIDTH + 1))
    with pytest.raises(InvalidArgumentError, match=r"bottleneck\.attention\.down_weight has shape \(3, 4, 16\)"):
        slots.acquire(2, lambda: AdapterSet({"attention": random_bottleneck(RNG, 3, 16, 4)}))
    assert slots.resident() == [1]


def test_a_load_that_fails_leaves_the_slots_as_they_were() -> None:
    slots = table(2)
    slots.release(slots.acquire(1, adapters))

    def load() -> AdapterSet:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        slots.acquire(2, load)
    assert slots.resident() == [1]


def test_a_part_takes_no_memory_before_somebody_has_it() -> None:
    slots = table(3)
    assert slots.bank.size_bytes == 0
    slots.release(slots.acquire(1, adapters))
    assert list(slots.bank.pools) == [("bottleneck.attention", 8)]


def test_nobody_pays_for_the_width_of_others_or_after_them() -> None:
    slots = table(12)
    for key in range(1, 11):
        slots.release(slots.acquire(key, adapters))
    narrow = slots.bank.size_bytes
    slots.release(slots.acquire(11, lambda: adapters(MAX_WIDTH)))
    assert slots.bank.size_bytes > narrow
    assert {width for _, width in slots.bank.pools} == {8, 32}
    for key in range(12, 23):
        slots.release(slots.acquire(key, adapters))
    assert {width for _, width in slots.bank.pools} == {8}


def test_pools_follow_what_is_resident_however_widths_came_and_went() -> None:
    """One of each width stays in use; the others of its width were replaced by those of the next."""
    slots, key = table(33), 0
    pinned = []
    for width in (8, 16, 32):
        for _ in range(32 - len(pinned)):
            key += 1
            slots.release(slots.acquire(key, lambda width=width: adapters(width)))  # type: ignore[misc]
        pinned.append(slots.acquire(key, adapters))
    taken = {
        key: sum(row.pool is pool for rows in slots.bank.pool_rows for row in rows.values())
        for key, pool in slots.bank.pools.items()
    }
    assert [count for _, count in sorted(taken.items())] == [1, 1, 30]
    assert all(pool.num_rows <= 4 * taken[key] for key, pool in slots.bank.pools.items())
    assert no_row_is_lost(slots.bank)


def test_a_batch_keeps_what_it_began_with_when_its_pool_gives_way_to_a_smaller_one() -> None:
    slots = table(33)
    sets = {key: adapters(4) for key in range(1, 33)}
    leases = [slots.acquire(key, lambda key=key: sets[key]) for key in sets]  # type: ignore[misc]
    pinned = leases[-1]
    for lease in leases[:-1]:
        slots.release(lease)
    states = torch.randn(6, GEOMETRY.hidden_size)
    norm = torch.nn.LayerNorm(GEOMETRY.hidden_size)
    batch = SegmentedAdapters(slots.bank, [Segment(slots.check(pinned), 0, 6)])
    pool = slots.bank.pools["bottleneck.attention", 8]
    with torch.inference_mode():
        expected = sets[32].layer(0).add_and_norm("attention", states, states, norm)
        for key in range(33, 64):
            slots.release(slots.acquire(key, lambda: adapters(MAX_WIDTH)))
        assert slots.bank.pools["bottleneck.attention", 8].num_rows < pool.num_rows
        assert slots.bank.pool_rows[pinned.slot]["bottleneck.attention"].row != 31
        later = SegmentedAdapters(slots.bank, [Segment(slots.check(pinned), 0, 6)])
        for one in (batch, later):
            got = one.layer(0).add_and_norm("attention", states.clone(), states.clone(), norm)
            assert torch.allclose(got, expected, atol=1e-5)


def no_row_is_lost(bank: AdapterBank) -> bool:
    """Whether each row is held by one slot, or free."""
    held = [(row.pool, row.row) for rows in bank.pool_rows for row in rows.values()]
    return all(
        sorted([*pool._free, *(row for other, row in held if other is pool)]) == list(range(pool.num_rows))
        for pool in bank.pools.values()
    )


def test_slots_hold_what_was_put_there_through_growth_and_reuse() -> None:
    """Random sets of random widths over few slots; what lies beside a narrow one is zeros, whoever was there before."""
    chance = random.Random(7)
    torch.manual_seed(7)
    sets = {key: random_adapters(chance, GEOMETRY, chance.choice(KINDS)) for key in range(1, 30)}
    slots = table(5)
    for _ in range(150):
        key = chance.choice(sorted(sets))
        slots.release(slots.acquire(key, lambda key=key: sets[key]))  # type: ignore[misc]
        for resident in slots.resident():
            lease = slots.acquire(resident, adapters)
            held, expected = slots.bank.held(slots.check(lease)), sets[resident]
            assert held.named().keys() == expected.named().keys()
            for name, tensor in expected.named().items():
                assert torch.equal(held.named()[name], tensor)
            for part, row in slots.bank.pool_rows[lease.slot].items():
                for name, tensor in row.pool.tensors.items():
                    own = expected.named()[f"{part}.{name}"]
                    assert tensor[:, row.row].count_nonzero() == own.count_nonzero()
            slots.release(lease)
        assert no_row_is_lost(slots.bank)
    assert slots.bank.held(0).parts() == {}


def test_a_slot_whose_filling_fails_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = table(3)
    fill = slots.bank.fill

    def fill_half(slot: int, adapters: AdapterSet) -> None:
        fill(slot, adapters)
        raise torch.OutOfMemoryError("no memory is left on the device")

    wide = AdapterSet({"output": random_bottleneck(RNG, 2, GEOMETRY.hidden_size, 8)})
    monkeypatch.setattr(slots.bank, "fill", fill_half)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            slots.acquire(1, lambda: wide)
    monkeypatch.setattr(slots.bank, "fill", fill)
    assert slots.resident() == []
    leases = [slots.acquire(key, adapters) for key in (1, 2)]
    assert {lease.slot for lease in leases} == {1, 2}
    assert no_row_is_lost(slots.bank)
    assert [list(rows) for rows in slots.bank.pool_rows if rows] == [["bottleneck.attention"]] * 2


def test_a_copy_that_fails_half_way_leaves_nothing_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = table(2)
    copy, copied = torch.Tensor.copy_, []

    def copy_two(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copied.append(target)
        if len(copied) > 2:
            raise torch.OutOfMemoryError("no memory is left on the device")
        return copy(target, source)

    wide = AdapterSet({"output": random_bottleneck(RNG, 2, GEOMETRY.hidden_size, 8)})
    slots.bank.make_room(wide)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "copy_", copy_two)
        with pytest.raises(torch.OutOfMemoryError):
            slots.acquire(1, lambda: wide)
    narrow = AdapterSet({"output": random_bottleneck(RNG, 2, GEOMETRY.hidden_size, 3)})
    row = slots.bank.pool_rows[slots.acquire(2, lambda: narrow).slot]["bottleneck.output"]
    for name, tensor in row.pool.tensors.items():
        own = narrow.named()[f"bottleneck.output.{name}"]
        assert tensor[:, row.row].count_nonzero() == own.count_nonzero()
    assert no_row_is_lost(slots.bank)
    assert [list(rows) for rows in slots.bank.pool_rows if rows] == [["bottleneck.output"]]


def test_where_memory_ends_before_slots_do_those_not_in_use_give_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else hPLMs that are not there yet would be refused for good."""
    slots = table(33)
    leases = [slots.acquire(key, adapters) for key in range(4)]

    def fail(pool: PartPool) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PartPool, "grow", fail)
    with pytest.raises(NoFreeSlotError, match="no memory for more adapters than are in use"):
        slots.acquire(4, adapters)
    for lease in leases[:2]:
        slots.release(lease)
    for key in range(4, 9):
        slots.release(slots.acquire(key, adapters))
    assert {2, 3} <= set(slots.resident()) and len(slots.resident()) == 4
    assert no_row_is_lost(slots.bank)


NO_MEMORY = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", NO_MEMORY, ids=["gpu", "cpu"])
def test_a_pool_stays_large_where_there_is_no_room_for_a_smaller_one_beside_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert widths_after_a_failed_compaction(monkeypatch, error) == {8: 32, 32: 32}


def test_another_failure_of_a_compaction_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="illegal access"):
        widths_after_a_failed_compaction(monkeypatch, RuntimeError("an illegal access"))


def widths_after_a_failed_compaction(monkeypatch: pytest.MonkeyPatch, error: Exception) -> dict[int, int]:
    """One narrow set stays in use while wide ones replace all others; how many rows the pool of each width has then."""

    def fail(pool: PartPool) -> None:
        raise error

    slots = table(33)
    leases = [slots.acquire(key, adapters) for key in range(1, 33)]
    for lease in leases[1:]:
        slots.release(lease)
    monkeypatch.setattr(PartPool, "compacted", fail)
    for key in range(33, 64):
        slots.release(slots.acquire(key, lambda: adapters(MAX_WIDTH)))
    return {width: pool.num_rows for (_, width), pool in slots.bank.pools.items()}
