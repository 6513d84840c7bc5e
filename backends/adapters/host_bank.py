"""The host bank: the weights of all hPLM versions, mapped from the disk, so that the page cache is their memory.

A version's files are checked when it is first met (damaged ones again when they change, or after half a minute), and
stay mapped as long as there is room and the registry's snapshot knows it: what is mapped takes disk even after it was
deleted. Nothing else is held in memory: with more hPLMs than the host has room for, the operating system keeps those
that are asked for.

Usage:
    bank.let_go()
    bank.announce(entry)  # the disk begins to read
    artifact = bank.artifact(entry, root_fingerprint, hidden_size)
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from backends.adapters.bank import HplmArtifact, read_artifact, state_of, weights_path
from backends.errors import presentable
from backends.failures import Failures
from backends.home import Home
from backends.registry.entries import HplmEntry

MAX_MAPPED = 16_384
"""A process may have some 65,000 mappings on Linux."""
LET_GO_EVERY_S = 60.0


class HostBank:
    """One thread asks for artefacts; any may announce them and let go of others.

    Args:
        home: Where they are.
        is_known: Whether requests may still come for the version with a key.
        max_mapped: How many are mapped, at most.
        let_go_every_s: How often those that are not known are looked for, at most.
    """

    def __init__(
        self,
        home: Home,
        is_known: Callable[[int], bool],
        max_mapped: int = MAX_MAPPED,
        let_go_every_s: float = LET_GO_EVERY_S,
    ) -> None:
        self._home = home
        self._is_known = is_known
        self._max_mapped = max_mapped
        self._let_go_every_s = let_go_every_s
        self._let_go_s = time.monotonic()
        self._lock = threading.Lock()
        self._mapped: OrderedDict[int, HplmArtifact] = OrderedDict()
        self._checked: set[int] = set()
        self._failures = Failures()

    def announce(self, entry: HplmEntry) -> None:
        """Let the operating system read a version's weights ahead of use; what is wrong with them shows on use."""
        with suppress(OSError):
            descriptor = os.open(weights_path(self._home.path / entry.folder), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def artifact(self, entry: HplmEntry, root_fingerprint: str, hidden_size: int) -> HplmArtifact:
        """A version's weights, as views into the mapped file; an error says what is wrong with them."""
        artifact = self._mapped.get(entry.key)
        if artifact is None:
            artifact = self._map(entry, root_fingerprint, hidden_size)
        with self._lock:
            self._mapped[entry.key] = artifact
            self._mapped.move_to_end(entry.key)
            self._checked.add(entry.key)
            if len(self._mapped) > self._max_mapped:
                self._mapped.popitem(last=False)
        return artifact

    def let_go(self) -> None:
        """Unmap the versions that nobody can ask for any more; does nothing if that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._let_go_s < self._let_go_every_s:
                return
            self._let_go_s = time.monotonic()
            for key in [key for key in self._checked if not self._is_known(key)]:
                self._checked.remove(key)
                self._mapped.pop(key, None)

    def _map(self, entry: HplmEntry, root_fingerprint: str, hidden_size: int) -> HplmArtifact:
        folder = self._home.path / entry.folder
        try:
            with self._failures.remembered((entry.key, state_of(folder))):
                artifact = read_artifact(folder, root_fingerprint, was_checked=entry.key in self._checked)
                artifact.require_of(entry)
                artifact.require_fits(entry, hidden_size)
        except Exception as error:
            raise presentable(error, "the weights of this hPLM are") from error
        return artifact
