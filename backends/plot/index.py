"""Two-choice hashing: every key lies in one of two slots, so a lookup reads one cache line, or two.

A slot is a key and its row, 16 bytes; of a wide key the outer ids lie in the bits above the row, so that it is exact as
well. Keys are placed in the order of their rows, and the first row has the first choice of slot: where builders append
by falling frequency, hot keys are found by the first read. An empty slot holds a key that does not belong
there, so that no query needs to know about empty slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Found, Keys, Rows, Words
from backends.plot.blocks import CheckedFile
from backends.plot.keys import WIDE_ID_BITS, WIDE_KEY, trigram

Slots = npt.NDArray[np.uint64]
Holders = npt.NDArray[np.uint32]

MAX_ENTRIES = (1 << 30) - 1
_WIDE_ROW_BITS = 64 - 2 * WIDE_ID_BITS
MAX_WIDE_ENTRIES = (1 << _WIDE_ROW_BITS) - 1
_LOAD = 0.4
_LEAST_SLOTS = 16
_SEEDS_PER_SIZE = 4
_GROWTH = 1.25
_ATTEMPTS = 24
_ROUNDS = 400
_CHUNK = 1 << 20

_U32 = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_MIX_1 = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xD6E8FEB86659FD93)
_MIX_OUTER = np.uint64(0xC2B2AE3D27D4EB4F)
_SEED_STEP = 0xA0761D6478BD642F
_FILLER = np.uint64(0)
_SECOND_FILLER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Probe:
    """Candidate slots of a key, for a number of slots and a seed."""

    slots: int
    seed: int

    def hashes(self, keys: Keys) -> Words:
        if keys.dtype == WIDE_KEY:
            keys = keys["inner"] ^ (keys["outer"] * _MIX_OUTER)
        mixed: Words = keys ^ np.uint64(self.seed * _SEED_STEP & 0xFFFFFFFFFFFFFFFF)
        mixed *= _MIX_1
        mixed ^= mixed >> _U32
        mixed *= _MIX_2
        mixed ^= mixed >> _U32
        return mixed

    def first(self, hashes: Words) -> Rows:
        return ((hashes >> _U32) * np.uint64(self.slots) >> _U32).view(np.int64)

    def second(self, hashes: Words) -> Rows:
        return ((hashes & _LOW_HALF) * np.uint64(self.slots) >> _U32).view(np.int64)


class KeyIndex:
    """The slots of an index, as they lie in its file."""

    def __init__(self, file: CheckedFile, seed: int) -> None:
        self._file = file
        self._slots: Slots = file.array(np.uint64)
        self._probe = Probe(file.layout.entries, seed)

    def find(self, keys: Keys) -> tuple[Rows, Found]:
        """The row of every key and whether it has one; a row means something only where it was found.

        Shape: [K] -> [K], [K]
        """
        hashes = self._probe.hashes(keys)
        rows, found = self._read(self._probe.first(hashes), keys)
        missing = np.flatnonzero(~found)
        if missing.size:
            rows[missing], found[missing] = self._read(self._probe.second(hashes[missing]), keys[missing])
        return rows, found

    def _read(self, at: Rows, keys: Keys) -> tuple[Rows, Found]:
        self._file.check(at)
        slots = self._slots.take(at, axis=0)
        if keys.dtype != WIDE_KEY:
            return slots[:, 1].view(np.int64), slots[:, 0] == keys
        found = (slots[:, 0] == keys["inner"]) & (slots[:, 1] >> np.uint64(_WIDE_ROW_BITS) == keys["outer"])
        return (slots[:, 1] & np.uint64(MAX_WIDE_ENTRIES)).view(np.int64), found


def build_index(keys: Keys) -> tuple[Probe, Iterator[Slots]]:
    """Put distinct keys into slots; the slots come in chunks, to be written one after another."""
    limit = MAX_WIDE_ENTRIES if keys.dtype == WIDE_KEY else MAX_ENTRIES
    if keys.size > limit:
        raise InvalidArgumentError(f"an index holds up to {limit} keys, not {keys.size}")
    for probe in _probes(keys.size):
        holders = _place(keys, probe) if _filler_is_safe(probe) else None
        if holders is not None:
            return probe, _slot_chunks(keys, probe, holders)
    raise InvalidArgumentError("the keys of an index must be distinct")


def least_slots(entries: int) -> int:
    """Return the number of slots to try first for this many entries."""
    return max(_LEAST_SLOTS, int(entries / _LOAD))


def _probes(entries: int) -> Iterator[Probe]:
    for attempt in range(_ATTEMPTS):
        slots = int(least_slots(entries) * _GROWTH ** (attempt // _SEEDS_PER_SIZE))
        yield Probe(slots, attempt)


def _place(keys: Keys, probe: Probe) -> Holders | None:
    """Per slot the row that it holds plus one, or zero; nothing where these slots and this seed do not work out."""
    holders = np.zeros(probe.slots, np.uint32)
    pending = np.concatenate([_claim_first(keys, probe, holders, start) for start in range(0, keys.size, _CHUNK)])
    at = probe.second(probe.hashes(keys[pending]))
    for _ in range(_ROUNDS):
        if not pending.size:
            return holders
        evicted = holders[at]
        holders[at] = pending + 1
        lost = holders[at] != pending + 1
        moved = ~lost & (evicted != 0)
        pending = np.concatenate([evicted[moved].astype(np.int64) - 1, pending[lost]])
        at = _other_slot(keys[pending], probe, np.concatenate([at[moved], at[lost]]))
    return None


def _claim_first(keys: Keys, probe: Probe, holders: Holders, start: int) -> Rows:
    """Give free first slots to the rows of one chunk, earlier rows first, and say which rows got none."""
    rows = np.arange(start, min(start + _CHUNK, keys.size))
    at = probe.first(probe.hashes(keys[rows]))
    free = np.flatnonzero(holders[at] == 0)[::-1]
    holders[at[free]] = rows[free] + 1
    left_over: Rows = rows[holders[at] != rows + 1]
    return left_over


def _other_slot(keys: Keys, probe: Probe, at: Rows) -> Rows:
    hashes = probe.hashes(keys)
    first = probe.first(hashes)
    other: Rows = np.where(first == at, probe.second(hashes), first)
    return other


def _slot_chunks(keys: Keys, probe: Probe, holders: Holders) -> Iterator[Slots]:
    own = _slots_of(_FILLER, probe)
    for start in range(0, probe.slots, _CHUNK):
        chunk = holders[start : start + _CHUNK]
        taken = np.flatnonzero(chunk)
        slots = np.zeros((chunk.size, 2), np.uint64)
        slots[own[(own >= start) & (own < start + chunk.size)] - start, 0] = _SECOND_FILLER
        held = keys[chunk[taken] - 1]
        slots[taken, 1] = chunk[taken] - 1
        slots[taken, 0] = trigram(held)
        if held.dtype == WIDE_KEY:
            slots[taken, 1] |= held["outer"] << np.uint64(_WIDE_ROW_BITS)
        yield slots


def _filler_is_safe(probe: Probe) -> bool:
    """Whether each filler stays out of the slots where a query for that very key would look."""
    return not np.intersect1d(_slots_of(_FILLER, probe), _slots_of(_SECOND_FILLER, probe)).size


def _slots_of(key: np.uint64, probe: Probe) -> Rows:
    hashes = probe.hashes(np.array([key]))
    return np.concatenate([probe.first(hashes), probe.second(hashes)])
