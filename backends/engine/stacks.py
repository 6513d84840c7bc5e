"""The shared upper layers of all roots on one device, each loaded once."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

from backends.engine.costs import EngineCosts
from backends.engine.crew import Crew
from backends.engine.stack import StackSettings, UpperStack
from backends.failures import Failures
from backends.home import Home
from backends.root.store import RootFolder

LOGGER = logging.getLogger(__name__)


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
        self._failures = Failures()
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
        with self._failures.remembered(root):
            self._costs.of(root)
            stack = UpperStack(RootFolder(self._home.root(root)), self._settings, self._crew)
        with self._lock:
            self._stacks[root] = stack
            self._on_loaded(root)
