"""Tables that fill themselves: a domain's lower layers compute the fragments that no table of its chain holds.

`compute` computes them while their texts wait (`computing.py`), up to a limit for each call; the rest is learned. A
computed fragment is used as it is stored, so the same text gets the same answer later. `learn` lets a shorter fragment
answer and computes the missing one in the background: the most frequent first, a quarter of the time at most, and
fragments that exceed this are dropped. Computed fragments are kept in the domain's overlay for later texts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.lower.layers import LowerLayers
from backends.plot.arrays import Float16Array, Keys
from backends.plot.askers import SEVERAL, Askers, asked_by
from backends.plot.overlay import Overlay

LOGGER = logging.getLogger(__name__)
RETRY_AFTER_S = 30.0
_LEARNED_AT_ONCE = 64
_MOST_WANTED = 16_384
_KEPT_WHEN_FULL = 0.75

PlainKey = int | tuple[int, int]
"""A key outside an array."""


@dataclass
class FillingCounts:
    """Counts of fragments by fate; `evicted` counts only those of roots that were closed."""

    computed: int = 0
    beyond_limit: int = 0
    learned: int = 0
    dropped: int = 0
    failed: int = 0
    evicted: int = 0


class DomainFilling:
    """The overlay of a domain version, and its growth; all fillings of a process share their `counts`."""

    def __init__(
        self,
        overlay: Overlay,
        layers: LowerLayers,
        folders: Sequence[Path],
        counts: FillingCounts,
    ) -> None:
        self.overlay = overlay
        self._layers = layers
        self._folders = folders
        self._counts = counts
        self._broken_until_s = time.monotonic()
        self._wanted: Counter[PlainKey] = Counter()
        self._wanted_by: dict[PlainKey, int] = {}
        self._wanted_lock = threading.Lock()

    @property
    def encoder(self) -> str:
        """Names the layers that compute: those of two domains are the same where this is the same."""
        return self.overlay.origin.identity

    @property
    def is_broken(self) -> bool:
        """Whether computing failed recently."""
        return time.monotonic() < self._broken_until_s

    def prepare(self) -> None:
        """Read the lower layers before a request needs them."""
        try:
            self._layers.prepare(self._folders)
        except Exception as error:  # shorter fragments answer whatever is wrong here
            self._break(error)

    def vectors(self, keys: Keys) -> Float16Array | None:
        """Compute distinct fragments, rounded as they are stored; None if the lower layers fail.

        Shape: keys [K] -> [K, n * H]
        """
        if self.is_broken:
            return None
        try:
            return self._layers.compute(self._folders, keys)
        except Exception as error:  # shorter fragments answer whatever is wrong here
            self._counts.failed += keys.size
            self._break(error)
            return None

    def note(self, keys: Keys, askers: Askers) -> None:
        """Note who asks for fragments of the overlay."""
        if keys.size:
            self.overlay.note(keys, askers)

    def keep_computed(self, keys: Keys, vectors: Float16Array, askers: Askers) -> None:
        """Keep distinct fragments that were computed while their texts waited."""
        self.overlay.add(keys, vectors, askers)
        self._counts.computed += keys.size

    def want_beyond_limit(self, keys: Keys, askers: Askers) -> None:
        """Learn fragments in the background that the limit kept from being computed."""
        if keys.size:
            self._counts.beyond_limit += np.unique(keys).size
            self.want(keys, askers)

    def want(self, keys: Keys, askers: Askers) -> None:
        """Note fragments to be learned; where they are too many, the least wanted are dropped.

        Shape: keys, askers [K]
        """
        first, by = asked_by(keys, askers)
        with self._wanted_lock:
            self._wanted.update(keys.tolist())
            for key, asker in zip(keys[first].tolist(), by.tolist(), strict=True):
                if self._wanted_by.setdefault(key, asker) != asker:
                    self._wanted_by[key] = SEVERAL
            if len(self._wanted) > _MOST_WANTED:
                self._drop_least_wanted(int(_KEPT_WHEN_FULL * _MOST_WANTED))

    def _drop_least_wanted(self, most: int) -> None:
        """Keep the most wanted; of what one tenant alone wants, no more than half as many while others want some."""
        of_one: Counter[int] = Counter()
        kept: list[tuple[PlainKey, int]] = []
        spare: list[tuple[PlainKey, int]] = []
        for key, count in self._wanted.most_common():
            asker = self._wanted_by[key]
            of_one[asker] += 1
            (kept if asker == SEVERAL or of_one[asker] <= most // 2 else spare).append((key, count))
        kept = [*kept, *spare][:most]
        self._counts.dropped += len(self._wanted) - len(kept)
        self._wanted = Counter(dict(kept))
        self._wanted_by = {key: self._wanted_by[key] for key, _ in kept}

    def learn_some(self) -> bool:
        """Compute a few of the most wanted fragments; returns whether there were any."""
        if self.is_broken or not self._wanted:
            return False
        wanted, askers = self._take_wanted()
        is_new = ~self.overlay.contains(wanted)
        keys = wanted[is_new]
        vectors = self.vectors(keys) if keys.size else None
        if vectors is not None:
            self.overlay.add(keys, vectors, askers[is_new])
            self._counts.learned += keys.size
        return bool(wanted.size)

    def _take_wanted(self) -> tuple[Keys, Askers]:
        with self._wanted_lock:
            keys = [key for key, _ in self._wanted.most_common(_LEARNED_AT_ONCE)]
            askers = [self._wanted_by.pop(key) for key in keys]
            for key in keys:
                del self._wanted[key]
        return np.array(keys, self._layers.layout.key), np.array(askers, np.uint32)

    def _break(self, error: Exception) -> None:
        LOGGER.error(
            "%s: lower layers cannot compute what tables lack, next try in %d s: %s",
            self.overlay.name,
            RETRY_AFTER_S,
            error,
        )
        self._broken_until_s = time.monotonic() + RETRY_AFTER_S
