"""The shared upper layers of all roots on one device, each loaded once."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from backends.engine.costs import EngineCosts
from backends.engine.crew import Crew
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.root.store import RootFolder

LOGGER = logging.getLogger(__name__)
_TRY_AGAIN_AFTER_S = 30.0


class Stacks:
    """Safe among threads; whoever asks for a root that is being loaded waits for it, and for no other.

    `on_loaded` is told of each root, one after the other.
    """

    def __init__(
        self, home: Home, settings: StackSettings, crew: Crew, costs: EngineCosts, on_loaded: Callable[[str], None]
    ) -> None:
        self._home = home
        self._settings = settings
        self._crew = crew
        self._costs = costs
        self._on_loaded = on_loaded
        self._stacks: dict[str, UpperStack] = {}
        self._failures: dict[str, tuple[float, Exception]] = {}
        """What went wrong with a root, and until when that is its answer."""
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def holds(self, root: str) -> bool:
        """Whether its layers can be had at once."""
        return root in self._stacks

    def of(self, root: str) -> UpperStack:
        if root not in self._stacks:
            with self._lock:
                loading = self._loading[root]
            with loading:
                if root not in self._stacks:
                    self._load(root)
        return self._stacks[root]

    def load(self, roots: Iterable[str]) -> None:
        """A root that fails is an error of its own tenants, unless none is left to serve."""
        failures: list[Exception] = []
        for root in sorted(roots):
            try:
                self.of(root)
            except Exception as error:
                LOGGER.error("root %s cannot be served: %s", root, error)
                failures.append(error)
        if failures and not self._stacks:
            raise failures[0]

    def _load(self, root: str) -> None:
        """A file that is damaged stays so for a while: reading it for each request would hold up the others."""
        until_s, failure = self._failures.get(root, (0.0, None))
        if failure is not None and time.monotonic() < until_s:
            raise copy.copy(failure)
        try:
            self._costs.of(root)
            stack = UpperStack(RootFolder(self._home.root(root)), self._settings, self._crew)
        except Exception as error:
            # A copy, which holds none of the memory that the trace of the failure does.
            self._failures[root] = time.monotonic() + _TRY_AGAIN_AFTER_S, copy.copy(error)
            raise
        with self._lock:
            self._failures.pop(root, None)
            self._stacks[root] = stack
            self._on_loaded(root)
