"""The keys that a table under construction holds already."""

from __future__ import annotations

import numpy as np

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Keys
from backends.plot.keys import unpack


class KeySet:
    """A few sorted runs whose sizes at least double, so that adding stays cheap however many keys there are."""

    def __init__(self, keys: Keys) -> None:
        self._runs = [np.sort(keys)]

    def add(self, keys: Keys) -> None:
        """Add all of the keys, or none when one of them is there already."""
        batch = np.sort(keys)
        repeated = [batch[1:][batch[1:] == batch[:-1]]]
        repeated += [batch[run.take(run.searchsorted(batch), mode="clip") == batch] for run in self._runs if run.size]
        for found in repeated:
            if found.size:
                ids = unpack(found[:1])[0].tolist()
                raise InvalidArgumentError(f"fragment {ids} is in the table already, or twice in this batch")
        self._insert(batch)

    def _insert(self, batch: Keys) -> None:
        while self._runs and self._runs[-1].size < 2 * batch.size:
            batch = np.sort(np.concatenate([self._runs.pop(), batch]), kind="stable")
        self._runs.append(batch)
