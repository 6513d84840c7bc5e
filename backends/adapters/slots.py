"""The device's adapter slots: who lives where, and for how long.

Slot 0 is the identity. A lease names a slot and the generation that it was filled in; it is checked each time the
slot is used, so that nobody is ever computed with what was loaded there later.

Usage:
    lease = slots.acquire(entry.key, lambda: artifact.adapter)
    try:
        slots.bank.down_weight[slots.check(lease), layer]
    finally:
        slots.release(lease)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.adapters.bottleneck import BottleneckAdapter
from backends.errors import HplmError, InvalidArgumentError, UnavailableError

IDENTITY_SLOT = 0


@dataclass(frozen=True)
class SlotLease:
    key: int
    slot: int
    generation: int


@dataclass(frozen=True)
class SlotBank:
    """All slots' adapters on the device; narrower adapters are filled up with zeros, which changes nothing.

    Shape:
        down_weight `[S, U, d, H]`, down_bias `[S, U, d]`, up_weight `[S, U, H, d]`, up_bias `[S, U, H]`.
    """

    down_weight: Tensor
    down_bias: Tensor
    up_weight: Tensor
    up_bias: Tensor

    @classmethod
    def zeros(
        cls, num_slots: int, num_layers: int, width: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> SlotBank:
        def make(*shape: int) -> Tensor:
            return torch.zeros(num_slots, num_layers, *shape, dtype=dtype, device=device)

        return cls(make(width, hidden), make(width), make(hidden, width), make(hidden))

    @property
    def width(self) -> int:
        return self.down_weight.shape[2]

    def fill(self, slot: int, adapter: BottleneckAdapter) -> None:
        width = adapter.width
        for tensor in (self.down_weight, self.down_bias, self.up_weight):
            tensor[slot].zero_()
        self.down_weight[slot, :, :width] = adapter.down_weight
        self.down_bias[slot, :, :width] = adapter.down_bias
        self.up_weight[slot, :, :, :width] = adapter.up_weight
        self.up_bias[slot] = adapter.up_bias


class StaleLeaseError(HplmError):
    """A slot was filled anew under somebody who still held it: a defect, never an answer."""


class SlotTable:
    """Least-recently-used slots with pinning; used by one thread, the serve loop's."""

    def __init__(self, bank: SlotBank) -> None:
        self.bank = bank
        num_slots = bank.down_weight.shape[0]
        if num_slots < 2:
            raise InvalidArgumentError("a slot table needs the identity slot and at least one more")
        self._free = list(range(num_slots - 1, IDENTITY_SLOT, -1))
        self._generations = [0] * num_slots
        self._pins = [0] * num_slots
        self._slot_of: OrderedDict[int, int] = OrderedDict()

    @property
    def capacity(self) -> int:
        """How many different adapters one batch may use."""
        return len(self._generations) - 1

    def resident(self) -> list[int]:
        return list(self._slot_of)

    def acquire(self, key: int, load: Callable[[], BottleneckAdapter]) -> SlotLease:
        """Pin the slot that holds `key`, loading it into the least recently used free one where needed."""
        if key not in self._slot_of:
            adapter = self._checked(load())
            slot = self._free_slot()
            self._generations[slot] += 1
            self.bank.fill(slot, adapter)
            self._slot_of[key] = slot
        slot = self._slot_of[key]
        self._slot_of.move_to_end(key)
        self._pins[slot] += 1
        return SlotLease(key, slot, self._generations[slot])

    def check(self, lease: SlotLease) -> int:
        """The lease's slot, if it still holds what was leased."""
        if self._generations[lease.slot] != lease.generation or self._slot_of.get(lease.key) != lease.slot:
            raise StaleLeaseError(f"slot {lease.slot} was filled anew while adapter {lease.key} was in use")
        return lease.slot

    def release(self, lease: SlotLease) -> None:
        self._pins[self.check(lease)] -= 1

    def _checked(self, adapter: BottleneckAdapter) -> BottleneckAdapter:
        _, layers, width, hidden = self.bank.down_weight.shape
        if (adapter.num_layers, adapter.hidden_size) != (layers, hidden) or adapter.width > width:
            raise InvalidArgumentError(
                f"an adapter of {adapter.num_layers} layers × {adapter.hidden_size}, width {adapter.width}, "
                f"does not fit slots of {layers} × {hidden}, width {width}"
            )
        return adapter

    def _free_slot(self) -> int:
        if self._free:
            return self._free.pop()
        for key, slot in self._slot_of.items():
            if self._pins[slot] == 0:
                del self._slot_of[key]
                return slot
        raise UnavailableError(f"all {self.capacity} adapter slots are in use by the running batch")
