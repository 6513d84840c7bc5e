"""How long something has been as it is, by a clock that nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable


class Unchanged:
    """Remembers the last value of each key, and when it was first seen; a wall clock that is set does not matter."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[Hashable, tuple[object, float]] = {}

    def seconds(self, key: Hashable, value: object) -> float:
        """Return how long a key has had this value; 0 the first time."""
        now = self._now()
        last, since = self._since.get(key, (None, now))
        if key not in self._since or last != value:
            self._since[key] = value, now
            return 0.0
        return now - since

    def forget(self, key: Hashable) -> None:
        self._since.pop(key, None)

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Forget all other keys."""
        kept = set(keys)
        self._since = {key: value for key, value in self._since.items() if key in kept}
