"""The device's adapter slots: which hPLM is in which slot, and how long it is pinned there.

Slot 0 is the identity. A lease names a slot and the slot's generation. It is checked at each use of the slot, so a row
is never computed with adapters that were loaded there later.

Usage:
    lease = slots.acquire(entry.key, lambda: artifact.adapters)
    try:
        slots.bank.pool_rows[slots.check(lease)]
    finally:
        slots.release(lease)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.device_bank import AdapterBank
from backends.device_errors import is_out_of_memory
from backends.errors import HplmError, InvalidArgumentError, UnavailableError

IDENTITY_SLOT = 0


class SlotLease(NamedTuple):
    key: int
    slot: int
    generation: int


class StaleLeaseError(HplmError):
    """A slot was refilled while a lease on it was held; this is a defect of the server."""


class NoFreeSlotError(UnavailableError):
    """All slots are pinned; a release makes room."""


class SlotTable:
    """Least-recently-used slots with pinning.

    One thread acquires; any may check and release meanwhile.
    """

    def __init__(self, bank: AdapterBank) -> None:
        self.bank = bank
        num_slots = bank.num_slots
        if num_slots < 2:
            raise InvalidArgumentError("a slot table needs the identity slot and at least one more")
        self._free = list(range(num_slots - 1, IDENTITY_SLOT, -1))
        self._generations = [0] * num_slots
        self._pins = [0] * num_slots
        self._slot_of: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Number of different hPLMs that one batch may use."""
        return len(self._generations) - 1

    def resident(self) -> list[int]:
        with self._lock:
            return list(self._slot_of)

    def holds(self, key: int) -> bool:
        return key in self._slot_of

    def acquire(self, key: int, load: Callable[[], AdapterSet]) -> SlotLease:
        """Pin the slot that holds `key`, loading it into the least recently used free one where needed."""
        if not self.holds(key):
            self._fill(key, load)
        with self._lock:
            slot = self._slot_of[key]
            self._slot_of.move_to_end(key)
            self._pins[slot] += 1
            return SlotLease(key, slot, self._generations[slot])

    def pin_again(self, lease: SlotLease) -> SlotLease:
        """Pin a slot that is pinned already once more; any thread may."""
        with self._lock:
            self._pins[self.check(lease)] += 1
        return lease

    def check(self, lease: SlotLease) -> int:
        """Return the lease's slot.

        Raises:
            StaleLeaseError: The slot was refilled.
        """
        if self._generations[lease.slot] != lease.generation or self._slot_of.get(lease.key) != lease.slot:
            raise StaleLeaseError(f"slot {lease.slot} was filled anew while adapter {lease.key} was in use")
        return lease.slot

    def release(self, lease: SlotLease) -> None:
        with self._lock:
            self._pins[self.check(lease)] -= 1

    def _fill(self, key: int, load: Callable[[], AdapterSet]) -> None:
        """Load into a slot; other threads see it only once it is filled."""
        self._require_room()
        adapters = load()
        self._make_room(adapters)
        slot = self._free_slot()
        try:
            self.bank.fill(slot, adapters)
        except BaseException:
            with self._lock:
                self._free.append(slot)
            raise
        with self._lock:
            self._slot_of[key] = slot

    def _make_room(self, adapters: AdapterSet) -> None:
        """Let the bank's pools grow; where the device has no memory for that, slots that are not pinned give theirs.

        Raises:
            NoFreeSlotError: Only pinned slots have some.
        """
        while True:
            try:
                self.bank.make_room(adapters)
                return
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self._slot_of:
                    raise
            with self._lock:
                if all(self._pins[slot] for slot in self._slot_of.values()):
                    raise NoFreeSlotError("the device has no memory for more adapters than are in use")
                slot = self._evicted()
                self._generations[slot] += 1
                self._free.append(slot)
            self.bank.empty(slot)

    def _require_room(self) -> None:
        """Check for room before the adapters are read from disk."""
        with self._lock:
            if not self._free and all(self._pins[slot] for slot in self._slot_of.values()):
                raise NoFreeSlotError(f"all {self.capacity} adapter slots are in use")

    def _free_slot(self) -> int:
        with self._lock:
            slot = self._free.pop() if self._free else self._evicted()
            self._generations[slot] += 1
            return slot

    def _evicted(self) -> int:
        key, slot = next((key, slot) for key, slot in self._slot_of.items() if not self._pins[slot])
        del self._slot_of[key]
        return slot
