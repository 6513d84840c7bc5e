"""The host bank: the weights of all hPLM versions, mapped from the disk, so that the page cache is their memory.

A version's files are checked at first use; damaged files are checked again when they change, or after half a minute. A
version stays mapped while there is room and the registry's snapshot knows it. Then it is unmapped, because mapped files
take disk space even after they were deleted. Nothing else is held in memory: where the host has no room for all hPLMs,
the operating system keeps those in use.

Usage:
    bank.unmap_unknown()
    bank.prefetch(entry)  # the disk begins to read
    artifact = bank.artifact(entry, root_fingerprint, hidden_size)
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from backends.adapters.bank import HplmArtifact, read_artifact, state_of, weights_path
from backends.adapters.ladder import read_ladder
from backends.adapters.student_adapters import read_student_adapters
from backends.errors import FileError, presentable
from backends.failures import Failures
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.root.student_set import StudentSet
from backends.storage import read_errors_are_clear

LOGGER = logging.getLogger(__name__)
_MAX_MAPPED = 16_384
"""A process may have some 65,000 mappings on Linux."""
UNMAP_EVERY_S = 60.0


class HostBank:
    """Artifacts of hPLM versions. One thread reads them; any thread may prefetch and unmap.

    Args:
        home: Home that holds the bank.
        is_known: Whether requests may still come for the version with a key.
        on_ladder: Called for a version that was mapped with a ladder.
        unmap_every_s: Shortest time between two searches for unknown versions.
    """

    def __init__(
        self,
        home: Home,
        is_known: Callable[[int], bool],
        on_ladder: Callable[[HplmEntry], None] = lambda _: None,
        unmap_every_s: float = UNMAP_EVERY_S,
    ) -> None:
        self._home = home
        self._is_known = is_known
        self._on_ladder = on_ladder
        self._unmap_every_s = unmap_every_s
        self._unmapped_s = time.monotonic()
        self._lock = threading.Lock()
        self._mapped: OrderedDict[int, HplmArtifact] = OrderedDict()
        self._checked: set[int] = set()
        self._without_ladder: set[int] = set()
        self._failures = Failures()

    def prefetch(self, entry: HplmEntry) -> None:
        """Let the operating system read a version's weights ahead of use; errors are left to the use."""
        with suppress(OSError):
            descriptor = os.open(weights_path(self._home.path / entry.folder), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def artifact(self, entry: HplmEntry, root_fingerprint: str, hidden_size: int, num_layers: int) -> HplmArtifact:
        """Return a version's weights, as views into the mapped file; without its ladder where that is damaged.

        Raises:
            HplmError: The files are missing, damaged, or of another root.
        """
        artifact = self._mapped.get(entry.key)
        if artifact is None:
            artifact = self._map(entry, root_fingerprint, hidden_size)
            artifact = _with_ladder(artifact, self._home.path / entry.folder, num_layers)
            (self._without_ladder.add if artifact.ladder is None else self._without_ladder.discard)(entry.key)
            if artifact.ladder is not None:
                self._on_ladder(entry)
        self._require_readable(entry, artifact)
        with self._lock:
            self._mapped[entry.key] = artifact
            self._mapped.move_to_end(entry.key)
            self._checked.add(entry.key)
            if len(self._mapped) > _MAX_MAPPED:
                self._mapped.popitem(last=False)
        return artifact

    def lacks_ladder(self, key: int) -> bool:
        """Whether a version was mapped without a ladder: it has none, or a damaged one. From any thread."""
        return key in self._without_ladder

    def with_students(
        self, entry: HplmEntry, root_fingerprint: str, hidden_size: int, num_layers: int, students: StudentSet
    ) -> HplmArtifact:
        """Return a version's weights with what it has for a root's students, which is read anew: slots keep it.

        Raises:
            HplmError: The files are missing, damaged, or of another root or other students.
        """
        artifact = self.artifact(entry, root_fingerprint, hidden_size, num_layers)
        try:
            with self._failures.remembered((entry.key, students.fingerprint)):
                folder = self._home.path / entry.folder
                with read_errors_are_clear(folder):
                    return artifact.with_students(read_student_adapters(folder), students)
        except Exception as error:
            raise presentable(error, "what this hPLM has for students is") from error

    def unmap_unknown(self) -> None:
        """Unmap the versions that no request can name any more; at most once in `unmap_every_s`."""
        with self._lock:
            if time.monotonic() - self._unmapped_s < self._unmap_every_s:
                return
            self._unmapped_s = time.monotonic()
            for key in [key for key in self._checked if not self._is_known(key)]:
                self._checked.remove(key)
                self._without_ladder.discard(key)
                self._mapped.pop(key, None)

    def _require_readable(self, entry: HplmEntry, artifact: HplmArtifact) -> None:
        """Read pages that have left the memory; after an error the file is mapped anew."""
        try:
            if artifact.pages is not None:
                artifact.pages.require_readable()
        except Exception as error:
            with self._lock:
                self._mapped.pop(entry.key, None)
                self._checked.discard(entry.key)
            raise presentable(error, "the weights of this hPLM are") from error

    def _map(self, entry: HplmEntry, root_fingerprint: str, hidden_size: int) -> HplmArtifact:
        folder = self._home.path / entry.folder
        try:
            with self._failures.remembered((entry.key, state_of(folder))), read_errors_are_clear(folder):
                artifact = read_artifact(folder, root_fingerprint, was_checked=entry.key in self._checked)
                artifact.require_of(entry)
                artifact.require_fits(entry, hidden_size)
        except Exception as error:
            raise presentable(error, "the weights of this hPLM are") from error
        return artifact


def _with_ladder(artifact: HplmArtifact, folder: Path, num_layers: int) -> HplmArtifact:
    """Add the ladder of a version; a damaged one costs its early answers only."""
    try:
        with read_errors_are_clear(folder):
            return artifact.with_ladder(read_ladder(folder, artifact.root_fingerprint), num_layers)
    except FileError as error:
        LOGGER.error("%s is answered in full: %s", artifact.hplm, error)
        return artifact
