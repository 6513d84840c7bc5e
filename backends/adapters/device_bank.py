"""The adapters of all slots on the device: a pool of rows for each kind of part and each width.

A pool takes no memory before the first hPLM that has such a part, and none after the last; one that is mostly free
gives way to a smaller one. Slot 0 is the identity and stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet, part_layers, part_sizes
from backends.adapters.part_pool import PartPool
from backends.adapters.parts import Part
from backends.errors import InvalidArgumentError
from backends.memory import suppress_out_of_memory
from backends.root.geometry import RootGeometry

_NARROW = 8
_WIDTH_STEP = 16

PoolKey = tuple[str, int]
"""A part's name and the width at which it is stored."""


@dataclass(frozen=True)
class Place:
    """Where a slot's part lies."""

    pool: PartPool
    row: int
    part: Part


class AdapterBank:
    """`held[slot]` are a slot's adapters as views into the pools; `places[slot]` says where each part lies."""

    def __init__(
        self, num_slots: int, geometry: RootGeometry, max_width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._geometry = geometry
        self._max_width = max_width
        self._dtype = dtype
        self._device = device
        self.pools: dict[PoolKey, PartPool] = {}
        self.held = [AdapterSet()] * num_slots
        self.places: list[Mapping[str, Place]] = [{}] * num_slots

    @property
    def num_slots(self) -> int:
        return len(self.held)

    @property
    def size_bytes(self) -> int:
        """What all slots take on the device."""
        return sum(pool.size_bytes for pool in self.pools.values())

    def make_room(self, adapters: AdapterSet) -> None:
        """Check that adapters fit the layers, and grow the pools that have no row left for them."""
        adapters.require_fits(self._geometry)
        for key, part in adapters.parts().items():
            if part.width > self._max_width:
                raise InvalidArgumentError(f"{key} is {part.width} wide; this server takes up to {self._max_width}")
        for key, part in adapters.parts().items():
            pool = self._pool(key, part)
            if pool.must_grow:
                pool.grow()
                self._move(pool, pool, lambda row: row)

    def fill(self, slot: int, adapters: AdapterSet) -> None:
        """Put adapters that `make_room` has seen into a slot, in place of what it held."""
        self._clear(slot)
        places = {}
        for key, part in adapters.parts().items():
            pool = self._pool(key, part)
            places[key] = Place(pool, *pool.take(part))
            # Before the copies: if one of them fails, whoever gets the slot next gives back the rows of the others.
            self._hold(slot, places)
            for name, tensor in part.named().items():
                _copy(tensor, places[key].part.named()[name])
        self._give_memory_back()

    def _clear(self, slot: int) -> None:
        places = self.places[slot]
        self._hold(slot, {})
        for place in places.values():
            place.pool.give_back(place.row)

    def _hold(self, slot: int, places: Mapping[str, Place]) -> None:
        self.places[slot] = dict(places)
        self.held[slot] = AdapterSet.from_parts({key: place.part for key, place in places.items()})

    def _pool(self, key: str, part: Part) -> PartPool:
        width = _NARROW if part.width <= _NARROW else -(-part.width // _WIDTH_STEP) * _WIDTH_STEP
        if (key, width) not in self.pools:
            inputs, outputs = part_sizes(self._geometry, key)
            shapes = part.shapes(part_layers(self._geometry, key), inputs, outputs, width)
            self.pools[key, width] = PartPool(shapes, self.num_slots - 1, self._dtype, self._device)
        return self.pools[key, width]

    def _move(self, old: PartPool, new: PartPool, row_of: Callable[[int], int]) -> None:
        """Hold views of the tensors that replace a pool's. A place is replaced as a whole, so pinned slots may move."""

        def moved(place: Place) -> Place:
            if place.pool is not old:
                return place
            return Place(new, row_of(place.row), new.view(row_of(place.row), place.part))

        for slot, places in enumerate(self.places):
            if any(place.pool is old for place in places.values()):
                self._hold(slot, {key: moved(place) for key, place in places.items()})

    def _give_memory_back(self) -> None:
        self.pools = {key: pool for key, pool in self.pools.items() if not pool.is_empty}
        for key, pool in self.pools.items():
            # Without room for the smaller one beside it, a pool stays as it is until a later time.
            if pool.is_mostly_free:
                with suppress_out_of_memory():
                    smaller, row_of = pool.compacted()
                    self._move(pool, smaller, row_of.__getitem__)
                    self.pools[key] = smaller


def _copy(tensor: Tensor, to: Tensor) -> None:
    """On a CPU converted first, fp16 by way of fp32, then turned about: a third of the time of both at once."""
    if to.device.type == "cpu" and to.dtype == torch.bfloat16:
        tensor = tensor.float().to(to.dtype)
    to.copy_(tensor)
