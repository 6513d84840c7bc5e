"""The adapters of all slots on the device: a pool of rows for each kind of part and each width.

A pool takes memory only while an hPLM with such a part is resident; a pool that is mostly free is compacted. Slot 0 is
the identity and stays empty.
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
class PoolRow:
    """The pool and row that hold a slot's part, and the part's form."""

    pool: PartPool
    row: int
    form: Form

    def fill(self, part: Part) -> None:
        room = self.pool.view(self.row, self.form)
        for name, tensor in part.named().items():
            convert_into(room[name], tensor)

    def part(self) -> Part:
        """Return the part as a view into the pool."""
        held: Part = self.form.filled(self.pool.view(self.row, self.form))
        return held


class AdapterBank:
    """The pools of all slots; `pool_rows[slot]` holds the pool row of each part."""

    def __init__(
        self, num_slots: int, geometry: RootGeometry, max_width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._geometry = geometry
        self._max_width = max_width
        self._dtype = dtype
        self._device = device
        self.pools: dict[PoolKey, PartPool] = {}
        self._pool_keys: dict[tuple[str, Form], PoolKey] = {}
        """Keys of the parts that were found to fit."""
        self.pool_rows: list[Mapping[str, PoolRow]] = [{}] * num_slots

    @property
    def num_slots(self) -> int:
        return len(self.pool_rows)

    @property
    def size_bytes(self) -> int:
        """Memory of all slots on the device."""
        return sum(pool.size_bytes for pool in self.pools.values())

    def held(self, slot: int) -> AdapterSet:
        """Return a slot's adapters, as views into the pools."""
        return AdapterSet.from_parts({key: row.part() for key, row in self.pool_rows[slot].items()})

    def make_room(self, adapters: AdapterSet) -> None:
        """Check that adapters fit the layers, and grow the pools that have no free row for them."""
        pool_keys = [(self._pool_key(key, part), part) for key, part in adapters.parts().items()]
        for pool_key, part in pool_keys:
            pool = self._pool(pool_key, part)
            if pool.must_grow:
                pool.grow()

    def fill(self, slot: int, adapters: AdapterSet) -> None:
        """Replace a slot's adapters by ones that `make_room` has seen."""
        self._clear(slot)
        for key, part in adapters.parts().items():
            pool = self._pool(self._pool_key(key, part), part)
            pool_row = PoolRow(pool, pool.take(part.form), part.form)
            # Before the copy: if it fails, the slot's next `fill` gives the row back.
            self.pool_rows[slot] = {**self.pool_rows[slot], key: pool_row}
            pool_row.fill(part)
        self._release_memory()

    def empty(self, slot: int) -> None:
        """Give up what a slot holds, and the memory that is free then."""
        self._clear(slot)
        self._release_memory()

    def _clear(self, slot: int) -> None:
        cleared, self.pool_rows[slot] = self.pool_rows[slot], {}
        for pool_row in cleared.values():
            pool_row.pool.give_back(pool_row.row)

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
        """Let slots use the rows of another pool. Each slot changes in one assignment, so pinned slots may move too."""
        for slot, pool_rows in enumerate(self.pool_rows):
            if any(pool_row.pool is old for pool_row in pool_rows.values()):
                self.pool_rows[slot] = {
                    key: PoolRow(new, row_of[pool_row.row], pool_row.form) if pool_row.pool is old else pool_row
                    for key, pool_row in pool_rows.items()
                }

    def _release_memory(self) -> None:
        self.pools = {key: pool for key, pool in self.pools.items() if not pool.is_empty}
        for key, pool in self.pools.items():
            # A pool keeps its size for now where memory has no room for the smaller one beside it.
            if pool.is_mostly_free:
                with suppress_out_of_memory():
                    smaller, row_of = pool.compacted()
                    self._move(pool, smaller, row_of)
                    self.pools[key] = smaller
