"""Look-ups of versions that a process does not know yet, on a thread of their own: the registry may be slow or away.

A version that went live only now may be known to `hplm_lower` a moment earlier than to `hplm_upper`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from backends.engine.job_queue import STOPPING
from backends.errors import NotFoundError, UnavailableError
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.rejection import versions_looked_up

LOGGER = logging.getLogger(__name__)
MAX_ROWS = 1024
"""Rows that may wait; their hidden rows are held meanwhile."""
ABSENT_S = 5.0
"""Time for which a version that does not exist is not looked up again."""
AWAY_S = 1.0
"""Time for which nothing is looked up after the registry could not be asked."""
_MOST_ABSENT = 4096

Submit = Callable[[], None]
"""Queues a request whose versions were looked up, or answers it with its error; raises nothing."""


class _Waiting(NamedTuple):
    keys: Collection[int]
    num_rows: int
    submit: Submit


class VersionLookups:
    """Requests that wait for the registry to tell their versions; those of known versions do not.

    One query asks for all versions that are lacking, so a request waits for two queries at most.
    """

    def __init__(self, snapshot: RegistrySnapshot, max_rows: int = MAX_ROWS) -> None:
        self._snapshot = snapshot
        self._max_rows = max_rows
        self._num_rows = 0
        self._waiting: list[_Waiting] = []
        self._absent_until_s: dict[int, float] = {}
        self._away_until_s = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="version-lookups", daemon=True)
        self._thread.start()

    def add(self, keys: Collection[int], num_rows: int, submit: Submit) -> None:
        """Submit a request once its unknown versions were looked up.

        Raises:
            NotFoundError: A version was looked up lately, and does not exist.
            UnavailableError: The registry could not be asked a moment ago, too many rows wait, or this is closed.
        """
        with self._changed:
            if self._closed:
                raise UnavailableError(STOPPING)
            self._require_hopeful(keys)
            if self._num_rows + num_rows > self._max_rows:
                raise versions_looked_up(self._num_rows)
            self._num_rows += num_rows
            self._waiting.append(_Waiting(keys, num_rows, submit))
            self._changed.notify()

    def require_found(self, keys: Collection[int]) -> None:
        """Check that versions which were looked up are known now; raises as `add` does."""
        with self._changed:
            self._require_hopeful([key for key in keys if not self._snapshot.knows(key)])

    def close(self) -> None:
        """Return once all requests are submitted."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _require_hopeful(self, keys: Collection[int]) -> None:
        now_s = time.monotonic()
        for key in keys:
            if now_s < self._absent_until_s.get(key, now_s):
                raise NotFoundError(f"hPLM version {key} does not exist")
        if keys and now_s < self._away_until_s:
            raise UnavailableError("the version of this hPLM cannot be looked up now; try again")

    def _run(self) -> None:
        while taken := self._take():
            self._look_up({key for one in taken for key in one.keys})
            with self._changed:
                self._num_rows -= sum(one.num_rows for one in taken)
            for one in taken:
                one.submit()

    def _take(self) -> list[_Waiting]:
        """Wait for requests; returns none once this is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            taken, self._waiting = self._waiting, []
        return taken

    def _look_up(self, keys: set[int]) -> None:
        try:
            self._snapshot.look_up(keys)
        except Exception as error:  # whatever it is, the next look-up may succeed
            LOGGER.warning("%d versions could not be looked up: %s", len(keys), error)
            with self._changed:
                self._away_until_s = time.monotonic() + AWAY_S
            return
        self._note_absent([key for key in keys if not self._snapshot.knows(key)])

    def _note_absent(self, keys: Collection[int]) -> None:
        now_s = time.monotonic()
        with self._changed:
            self._absent_until_s.update(dict.fromkeys(keys, now_s + ABSENT_S))
            lately = [(key, until_s) for key, until_s in self._absent_until_s.items() if now_s < until_s]
            self._absent_until_s = dict(lately[-_MOST_ABSENT:])
