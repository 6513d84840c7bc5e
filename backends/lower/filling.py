"""Tables that fill themselves: a domain's lower layers compute the fragments that no table of its chain holds.

`compute` computes them while the batch waits, so that answers are exact, up to a limit for each batch; the rest is
learned. `learn` lets a shorter fragment answer and computes the missing one in the background: the most frequent first,
a quarter of the time at most, and fragments that exceed this are dropped. Computed fragments are kept in the domain's
overlay for later texts.
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
from backends.plot.allowance import Allowance
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
    learned: int = 0
    dropped: int = 0
    failed: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class Shared:
    """The parts that the fillings of a process share; `computing` is the batch's remaining allowance."""

    missing: Missing
    computing: Allowance
    counts: FillingCounts


class DomainFilling:
    """The overlay of a domain version, and its growth."""

    def __init__(self, overlay: Overlay, layers: LowerLayers, folders: Sequence[Path], shared: Shared) -> None:
        self.overlay = overlay
        self.computing = shared.computing
        self._layers = layers
        self._folders = folders
        self._counts = shared.counts
        self._broken_until_s = time.monotonic()
        self._wanted: Counter[PlainKey] = Counter()
        self._wanted_lock = threading.Lock()
        self.suppliers: Sequence[Supplier] = (
            (overlay, Computed(self)) if shared.missing is Missing.COMPUTE else (Learned(self),)
        )

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

    def compute(self, keys: Keys) -> Float16Array | None:
        """Compute the vectors of distinct fragments into the overlay; None if the lower layers fail.

        Shape: keys [K] -> [K, n * H]
        """
        if self.is_broken:
            return None
        try:
            vectors = self._layers.compute(self._folders, keys)
        except Exception as error:  # shorter fragments answer whatever is wrong here
            self._counts.failed += keys.size
            self._break(error)
            return None
        self.overlay.add(keys, vectors)
        return vectors

    def compute_now(self, keys: Keys) -> Float16Array | None:
        vectors = self.compute(keys)
        self._counts.computed += 0 if vectors is None else keys.size
        return vectors

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
        if keys.size and self.compute(keys) is not None:
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


class Computed:
    """Computes requested fragments on the spot as far as the batch may, and notes the rest."""

    def __init__(self, filling: DomainFilling) -> None:
        self._filling = filling
        self.name = filling.overlay.name.removesuffix("/overlay") + "/computed"

    def fetch(self, keys: Keys) -> tuple[Float16Array, Found]:
        distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        by_need = np.argsort(-counts, kind="stable")
        granted = self._filling.computing.take(distinct.size)
        positions = np.argsort(by_need)[inverse]
        is_granted = positions < granted
        self._filling.want(keys[~is_granted])
        vectors = self._filling.compute_now(distinct[by_need[:granted]]) if granted else None
        if vectors is None:
            return np.empty((0, 0), np.float16), np.zeros(keys.size, np.bool_)
        return vectors[positions[is_granted]], is_granted


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
