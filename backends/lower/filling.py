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
from backends.lower.settings import Missing
from backends.plot.arrays import Float16Array, Found, Keys
from backends.plot.chain import Supplier
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
        self, overlay: Overlay, layers: LowerLayers, folders: Sequence[Path], missing: Missing, counts: FillingCounts
    ) -> None:
        self.overlay = overlay
        self._layers = layers
        self._folders = folders
        self._counts = counts
        self._broken_until_s = time.monotonic()
        self._wanted: Counter[PlainKey] = Counter()
        self._wanted_lock = threading.Lock()
        self.suppliers: Sequence[Supplier] = (overlay,) if missing is Missing.COMPUTE else (Learned(self),)

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

    def keep_computed(self, keys: Keys, vectors: Float16Array) -> None:
        """Keep distinct fragments that were computed while their texts waited."""
        self.overlay.add(keys, vectors)
        self._counts.computed += keys.size

    def want_beyond_limit(self, keys: Keys) -> None:
        """Learn fragments in the background that the limit kept from being computed."""
        if keys.size:
            self._counts.beyond_limit += np.unique(keys).size
            self.want(keys)

    def want(self, keys: Keys) -> None:
        """Note fragments to be learned; where they are too many, the least wanted are dropped."""
        with self._wanted_lock:
            self._wanted.update(keys.tolist())
            if len(self._wanted) > _MOST_WANTED:
                kept = self._wanted.most_common(int(_KEPT_WHEN_FULL * _MOST_WANTED))
                self._counts.dropped += len(self._wanted) - len(kept)
                self._wanted = Counter(dict(kept))

    def learn_some(self) -> bool:
        """Compute a few of the most wanted fragments; returns whether there were any."""
        if self.is_broken:
            return False
        wanted = self._take_wanted()
        keys = wanted[~self.overlay.contains(wanted)]
        vectors = self.vectors(keys) if keys.size else None
        if vectors is not None:
            self.overlay.add(keys, vectors)
            self._counts.learned += keys.size
        return bool(wanted.size)

    def _take_wanted(self) -> Keys:
        with self._wanted_lock:
            keys = [key for key, _ in self._wanted.most_common(_LEARNED_AT_ONCE)]
            for key in keys:
                del self._wanted[key]
        return np.array(keys, self._layers.layout.key)

    def _break(self, error: Exception) -> None:
        LOGGER.error(
            "%s: lower layers cannot compute what tables lack, next try in %d s: %s",
            self.overlay.name,
            RETRY_AFTER_S,
            error,
        )
        self._broken_until_s = time.monotonic() + RETRY_AFTER_S


class Learned:
    """A supplier of the fragments learned so far; it notes the others for learning."""

    def __init__(self, filling: DomainFilling) -> None:
        self._filling = filling
        self.name = filling.overlay.name

    def fetch(self, keys: Keys) -> tuple[Float16Array, Found]:
        vectors, found = self._filling.overlay.fetch(keys)
        if not found.all():
            self._filling.want(keys[~found])
        return vectors, found
