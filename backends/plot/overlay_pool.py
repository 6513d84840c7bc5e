"""Learned vectors in memory, of all domains of one root, within one bound: hot ones stay, cold ones make room.

A fragment lies in one of the eight ways of its set; a way names a row, rows hold the vectors. Any thread may ask
and add: what was found is copied out at once, so that no row changes under its reader.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Float16Array, Found, Keys, Rows, Words
from backends.plot.askers import SEVERAL, Askers, Fetched
from backends.plot.index import Probe
from backends.plot.keys import WIDE_KEY
from backends.plot.overlay_log import FragmentLayout, LearnedFragments, Uses

Owners = npt.NDArray[np.int64] | npt.NDArray[np.int32]

_WAYS = 8
_WAYS_PER_ROW = 4
_PLACE_BYTES = 12
_ROW_BYTES = 8
_LEAST_ROWS = 64
# One in four of those looked at makes room; so few are added under one lock that a lookup hardly waits for it.
_LOOK_AT = 4
_ADDED_AT_ONCE = 128
_OWNER_STEP = np.uint64(0x9E3779B97F4A7C15)
_OUTER_STEP = np.uint64(0xC2B2AE3D27D4EB4F)
_FREE = 0


class OverlayPool:
    """Rows of vectors, each of one owner and one key."""

    def __init__(self, size_bytes: int, layout: FragmentLayout) -> None:
        self.row_bytes = layout.entry_bytes + _ROW_BYTES + _WAYS_PER_ROW * _PLACE_BYTES
        self._capacity = size_bytes // self.row_bytes
        if self._capacity < _LEAST_ROWS:
            raise InvalidArgumentError(
                f"an overlay of {size_bytes} bytes is too small; one entry takes {self.row_bytes}"
            )
        self._probe = Probe(self._capacity * _WAYS_PER_ROW // _WAYS, seed=0)
        self._way_tags = np.zeros((self._probe.slots, _WAYS), np.uint64)
        # Per way the row that it names plus one, or zero; the system gives memory to rows when they are first used.
        self._way_rows = np.zeros((self._probe.slots, _WAYS), np.uint32)
        self._vectors = np.empty((self._capacity, layout.width), np.float16)
        self._keys = np.zeros(self._capacity, layout.key)
        self._owners = np.zeros(self._capacity, np.int32)
        self._uses = np.zeros(self._capacity, np.uint32)
        self._askers: Askers = np.zeros(self._capacity, np.uint32)
        self._rows_of: Counter[int] = Counter()
        """How many rows each tenant alone has asked for, or several have."""
        self._fresh = 0
        self._hand = 0
        self._last_owner = _FREE
        self._lock = threading.Lock()
        self.evicted = 0

    @property
    def entries(self) -> int:
        return int(np.count_nonzero(self._owners))

    @property
    def size_bytes(self) -> int:
        return self.entries * self.row_bytes

    def new_owner(self) -> int:
        with self._lock:
            self._last_owner += 1
            return self._last_owner

    def fetch(self, owner: int, keys: Keys) -> Fetched:
        """Copies of the vectors of those keys that are here; they count as used.

        Shape: keys [K]
        """
        with self._lock:
            rows, found = self._find(owner, keys)
            hits = rows[found]
            self._uses[hits] += np.uint32(1)
            return Fetched(self._vectors.take(hits, axis=0), found, self._askers[hits])

    def contains(self, owner: int, keys: Keys) -> Found:
        """Shape: [K] -> [K]."""
        with self._lock:
            return self._find(owner, keys)[1]

    def newly_shared(self, owner: int, keys: Keys, askers: Askers) -> Found:
        """Note who asks, and tell which fragments another tenant has asked for until now.

        Shape: keys, askers [K] -> [K]
        """
        with self._lock:
            rows, found = self._find(owner, keys)
            first = self._askers[rows]
            shared: Found = found & (first != SEVERAL) & (first != askers)
            self._now_several(np.unique(rows[shared]))
            return shared

    def add(self, owner: int, keys: Keys, vectors: Float16Array, uses: Uses, askers: Askers | None = None) -> None:
        """Add fragments that are missing, in the rows of the least used; without askers, several have asked.

        Where all rows are taken, a tenant whose own fragments have half of them makes room among its own.

        Shape: keys, uses, askers [K], vectors [K, width]
        """
        askers = np.full(keys.size, SEVERAL, np.uint32) if askers is None else askers
        distinct = np.unique(keys, return_index=True)[1]
        at_once = min(_ADDED_AT_ONCE, self._capacity // _LOOK_AT)
        for start in range(0, distinct.size, at_once):
            chosen = distinct[start : start + at_once]
            with self._lock:
                new = chosen[~self._find(owner, keys[chosen])[1]]
                for part, crowder in self._parts(new, askers[new]):
                    self._put(owner, keys[part], vectors[part], uses[part], askers[part], crowder)

    def fragments(self, owner: int, of_several: bool = False) -> LearnedFragments:
        """Return the fragments of an owner, or those that several tenants asked for, and how often they were used."""
        with self._lock:
            is_wanted = self._owners == owner
            rows = np.flatnonzero(is_wanted & (self._askers == SEVERAL) if of_several else is_wanted)
            return LearnedFragments(self._keys[rows], self._uses[rows])

    def release(self, owner: int) -> None:
        """Free all rows of an owner."""
        with self._lock:
            self._free(np.flatnonzero(self._owners == owner))

    def _find(self, owner: int, keys: Keys) -> tuple[Rows, Found]:
        tags = _tags(np.array([owner]), keys)
        sets = self._probe.first(self._probe.hashes(tags))
        way = (self._way_tags[sets] == tags[:, None]).argmax(axis=1)
        rows = self._way_rows[sets, way].astype(np.int64) - 1
        # An empty way reads the last row; tags of two owners may collide. Either shows here.
        return rows, (self._keys[rows] == keys) & (self._owners[rows] == owner)

    def _parts(self, new: Rows, askers: Askers) -> Iterator[tuple[Rows, int | None]]:
        """Part what is new into that of each tenant whose own fragments have half of all rows, and the rest."""
        is_left = np.ones(new.size, np.bool_)
        for crowder in [asker for asker in np.unique(askers).tolist() if self._has_half(asker)]:
            is_own = askers == crowder
            is_left &= ~is_own
            yield new[is_own], crowder
        yield new[is_left], None

    def _has_half(self, asker: int) -> bool:
        return asker != SEVERAL and self._rows_of[asker] >= self._capacity // 2

    def _put(
        self, owner: int, keys: Keys, vectors: Float16Array, uses: Uses, askers: Askers, crowder: int | None
    ) -> None:
        if not keys.size:
            return
        rows = self._cold_rows(keys.size, crowder)
        self._evict(rows)
        self._vectors[rows] = vectors
        self._keys[rows], self._owners[rows] = keys, owner
        self._note_askers(rows, askers)
        # New ones must outlive the next look at them, or they could never become hot.
        self._uses[rows] = np.maximum(uses, 1)
        self._enter(rows)

    def _cold_rows(self, count: int, crowder: int | None) -> Rows:
        """Return fresh rows, or the least used of the next ones; the others' uses are halved, so that old ones fade."""
        if self._fresh + count <= self._capacity:
            self._fresh += count
            return np.arange(self._fresh - count, self._fresh)
        window = self._next_rows(_LOOK_AT * count)
        if crowder is not None:
            own = window[self._askers[window] == crowder]
            window = own if own.size >= count else window
        by_use = window[np.argpartition(self._uses[window], count - 1)]
        self._uses[by_use[count:]] >>= np.uint32(1)
        return by_use[:count]

    def _next_rows(self, count: int) -> Rows:
        window: Rows = (self._hand + np.arange(min(count, self._capacity))) % self._capacity
        self._hand = int(window[-1]) + 1
        return window

    def _note_askers(self, rows: Rows, askers: Askers) -> None:
        """Note who has asked for some rows; each is named once."""
        self._rows_of.subtract(self._askers[rows].tolist())
        self._askers[rows] = askers
        self._rows_of.update(askers.tolist())

    def _now_several(self, rows: Rows) -> None:
        self._note_askers(rows, np.full(rows.size, SEVERAL, np.uint32))

    def _enter(self, rows: Rows) -> None:
        """Give every row a way of its set, one row of a set at a time."""
        sets = self._sets(rows)
        while rows.size:
            turn = np.unique(sets, return_index=True)[1]
            self._enter_first(rows[turn], sets[turn])
            rows, sets = np.delete(rows, turn), np.delete(sets, turn)

    def _enter_first(self, rows: Rows, sets: Rows) -> None:
        full = (self._way_rows[sets] != 0).all(axis=1)
        if full.any():
            held = self._way_rows[sets[full]].astype(np.int64) - 1
            self._evict(held[np.arange(len(held)), self._uses[held].argmin(axis=1)])
        ways = (self._way_rows[sets] == 0).argmax(axis=1)
        self._way_tags[sets, ways] = self._row_tags(rows)
        self._way_rows[sets, ways] = rows + 1

    def _evict(self, rows: Rows) -> None:
        self.evicted += int(np.count_nonzero(self._owners[rows]))
        self._free(rows)

    def _free(self, rows: Rows) -> None:
        held = rows[self._owners[rows] != _FREE]
        sets = self._sets(held)
        ways = (self._way_rows[sets] == (held + 1)[:, None]).argmax(axis=1)
        self._way_rows[sets, ways] = 0
        self._way_tags[sets, ways] = 0
        self._owners[held], self._uses[held] = _FREE, 0
        self._now_several(held)

    def _sets(self, rows: Rows) -> Rows:
        return self._probe.first(self._probe.hashes(self._row_tags(rows)))

    def _row_tags(self, rows: Rows) -> Words:
        return _tags(self._owners[rows], self._keys[rows])


def _tags(owners: Owners, keys: Keys) -> Words:
    """Hash owners and keys to tags; they may collide, so a hit compares owner and key as well."""
    inner, outer = (keys["inner"], keys["outer"]) if keys.dtype == WIDE_KEY else (keys, np.uint64(0))
    tags: Words = inner ^ (outer * _OUTER_STEP) ^ (owners.astype(np.uint64) * _OWNER_STEP)
    return tags
