"""The stacks on one device, each loaded once and unloaded when nothing live uses it."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from backends.engine.stack_protocol import Stack
from backends.failures import Failures
from backends.stack_key import StackKey

LOGGER = logging.getLogger(__name__)
Notify = Callable[[StackKey], None]


class LoadedStacks:
    """Stacks by key. Thread-safe; a caller that needs a loading stack waits for that one only.

    Args:
        build: Loads a stack.
        on_loaded: Called for each loaded stack, one after the other.
        on_unloaded: Called for each unloaded stack, one after the other.
    """

    def __init__(self, build: Callable[[StackKey], Stack], on_loaded: Notify, on_unloaded: Notify) -> None:
        self._build = build
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded
        self._stacks: dict[StackKey, Stack] = {}
        self._failures = Failures()
        self._loading: defaultdict[StackKey, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def holds(self, key: StackKey) -> bool:
        """Whether `of` returns at once."""
        return key in self._stacks

    def of(self, key: StackKey) -> Stack:
        stack = self._stacks.get(key)
        if stack is None:
            with self._lock:
                loading = self._loading[key]
            with loading:
                stack = self._stacks.get(key) or self._load(key)
        return stack

    def load(self, keys: Iterable[StackKey]) -> None:
        """Load stacks; one that fails costs only its own tenants. Raises if none could be loaded."""
        failures: list[Exception] = []
        for key in sorted(keys):
            try:
                self.of(key)
            except Exception as error:
                LOGGER.error("root %s cannot be served: %s", key, error)
                failures.append(error)
        if failures and not self._stacks:
            raise failures[0]

    def keep(self, used: Collection[StackKey]) -> None:
        """Unload all other stacks; a batch that runs on one keeps it until its end."""
        with self._lock:
            unused = [key for key in self._stacks if key not in used]
            for key in unused:
                del self._stacks[key]
                self._loading.pop(key, None)
                self._on_unloaded(key)
                LOGGER.info("root %s is unloaded, since nothing live uses it", key)

    def _load(self, key: StackKey) -> Stack:
        with self._failures.remembered(key):
            stack = self._build(key)
        with self._lock:
            self._stacks[key] = stack
            self._on_loaded(key)
        return stack
