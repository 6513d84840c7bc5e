"""The stacks on one device, each loaded once and unloaded when nothing live uses it.

Those of roots that the server does not hold are guests: they go, too, once no request has named them for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from backends.engine.stack_protocol import Stack
from backends.failures import Failures
from backends.stack_key import StackKey

LOGGER = logging.getLogger(__name__)
Notify = Callable[[StackKey], None]
GUEST_S = 600.0
"""For so long a guest stays that no request names; loading it again takes seconds."""


class LoadedStacks:
    """Stacks by key. Thread-safe; a caller that needs a loading stack waits for that one only.

    Args:
        build: Loads a stack.
        on_loaded: Called for each loaded stack, one after the other.
        on_unloaded: Called for each unloaded stack, one after the other.
        is_held: Whether a stack stays for as long as something live may use it; the others are guests.
    """

    def __init__(
        self,
        build: Callable[[StackKey], Stack],
        on_loaded: Notify,
        on_unloaded: Notify,
        is_held: Callable[[StackKey], bool] = lambda _: True,
    ) -> None:
        self._build = build
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded
        self._is_held = is_held
        self._stacks: dict[StackKey, Stack] = {}
        self._guests_used_s: dict[StackKey, float] = {}
        """When each guest was asked for last."""
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
        if key in self._guests_used_s:
            self._guests_used_s[key] = time.monotonic()
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
        """Unload all other stacks, and guests that left; a batch that runs on one keeps it until its end."""
        with self._lock:
            before_s = time.monotonic() - GUEST_S
            leaving = {key for key, used_s in self._guests_used_s.copy().items() if used_s < before_s}
            for key in [key for key in self._stacks if key not in used or key in leaving]:
                del self._stacks[key]
                self._loading.pop(key, None)
                self._guests_used_s.pop(key, None)
                self._on_unloaded(key)
                why = "no request names it" if key in used else "nothing live uses it"
                LOGGER.info("root %s is unloaded, since %s", key, why)

    def _load(self, key: StackKey) -> Stack:
        with self._failures.remembered(key):
            stack = self._build(key)
        with self._lock:
            self._stacks[key] = stack
            if not self._is_held(key):
                self._guests_used_s[key] = time.monotonic()
            self._on_loaded(key)
        return stack
