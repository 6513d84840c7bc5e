"""The adapters of all slots on the device: a pool of rows for each kind of part and each width.

A pool takes no memory before the first hPLM that has such a part, and none after the last; one that is mostly free
gives way to a smaller one. Slot 0 is the identity and stays empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from backends.adapters.adapter_set import AdapterSet, part_layers, part_sizes, require_part_fits
from backends.adapters.part_pool import PartPool
from backends.adapters.parts import Part
from backends.adapters.tensors import Form
from backends.conversion import convert_into
from backends.device_errors import suppress_out_of_memory
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry

_NARROW = 8
_WIDTH_STEP = 16

PoolKey = tuple[str, int]
"""A part's name and the width at which it is stored."""


@dataclass(frozen=True)
class Place:
    """Where a slot's part lies, and what it is."""

    pool: PartPool
    row: int
    form: Form

    def fill(self, part: Part) -> None:
        room = self.pool.view(self.row, self.form)
        for name, tensor in part.named().items():
            convert_into(room[name], tensor)

    def part(self) -> Part:
        """As a view into the pool."""
        held: Part = self.form.filled(self.pool.view(self.row, self.form))
        return held


class AdapterBank:
    """`places[slot]` says where each part lies."""

    def __init__(
        self, num_slots: int, geometry: RootGeometry, max_width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._geometry = geometry
        self._max_width = max_width
        self._dtype = dtype
        self._device = device
        self.pools: dict[PoolKey, PartPool] = {}
        self._pool_keys: dict[tuple[str, Form], PoolKey] = {}
        """Of the parts that have been found to fit."""
        self.places: list[Mapping[str, Place]] = [{}] * num_slots

    @property
    def num_slots(self) -> int:
        return len(self.places)

    @property
    def size_bytes(self) -> int:
        """What all slots take on the device."""
        return sum(pool.size_bytes for pool in self.pools.values())

    def held(self, slot: int) -> AdapterSet:
        """A slot's adapters, as views into the pools."""
        return AdapterSet.from_parts({key: place.part() for key, place in self.places[slot].items()})

    def make_room(self, adapters: AdapterSet) -> None:
        """Check that adapters fit the layers, and grow the pools that have no row left for them."""
        pool_keys = [(self._pool_key(key, part), part) for key, part in adapters.parts().items()]
        for pool_key, part in pool_keys:
            pool = self._pool(pool_key, part)
            if pool.must_grow:
                pool.grow()

    def fill(self, slot: int, adapters: AdapterSet) -> None:
        """Put adapters that `make_room` has seen into a slot, in place of what it held."""
        self._clear(slot)
        for key, part in adapters.parts().items():
            pool = self._pool(self._pool_key(key, part), part)
            place = Place(pool, pool.take(part.form), part.form)
            # Before the copies: if one of them fails, whoever gets the slot next gives back the rows of the others.
            self.places[slot] = {**self.places[slot], key: place}
            place.fill(part)
        self._give_memory_back()

    def _clear(self, slot: int) -> None:
        places, self.places[slot] = self.places[slot], {}
        for place in places.values():
            place.pool.give_back(place.row)

    def _pool_key(self, key: str, part: Part) -> PoolKey:
        pool_key = self._pool_keys.get((key, part.form))
        if pool_key is None:
            require_part_fits(key, part, self._geometry)
            if part.width > self._max_width:
                raise InvalidArgumentError(f"{key} is {part.width} wide; this server takes up to {self._max_width}")
            width = _NARROW if part.width <= _NARROW else -(-part.width // _WIDTH_STEP) * _WIDTH_STEP
            pool_key = self._pool_keys[key, part.form] = key, width
        return pool_key

    def _pool(self, pool_key: PoolKey, part: Part) -> PartPool:
        if pool_key not in self.pools:
            key, width = pool_key
            inputs, outputs = part_sizes(self._geometry, key)
            shapes = part.shapes(part_layers(self._geometry, key), inputs, outputs, width)
            self.pools[pool_key] = PartPool(shapes, self.num_slots - 1, self._dtype, self._device)
        return self.pools[pool_key]

    def _move(self, old: PartPool, new: PartPool, row_of: Mapping[int, int]) -> None:
        """A pool's rows lie in another one now. A slot's places are replaced all at once, so pinned ones may move."""
        for slot, places in enumerate(self.places):
            if any(place.pool is old for place in places.values()):
                self.places[slot] = {
                    key: Place(new, row_of[place.row], place.form) if place.pool is old else place
                    for key, place in places.items()
                }

    def _give_memory_back(self) -> None:
        self.pools = {key: pool for key, pool in self.pools.items() if not pool.is_empty}
        for key, pool in self.pools.items():
            # Without room for the smaller one beside it, a pool stays as it is until a later time.
            if pool.is_mostly_free:
                with suppress_out_of_memory():
                    smaller, row_of = pool.compacted()
                    self._move(pool, smaller, row_of)
                    self.pools[key] = smaller
