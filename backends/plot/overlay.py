"""Overlays: fragments that a domain version learns while it serves, because no table of its chain holds them.

In memory the overlays of a root's domains share a pool (`overlay_pool`). On disk each process writes the fragments that
it learned into a log of its own (`overlay_log`), and reads the logs of all others. Only `sync` touches the disk, and no
request waits for it; after an error on disk, fragments are lost at the next restart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from backends.errors import StorageFullError
from backends.plot.allowance import Allowance
from backends.plot.arrays import Float16Array, Found, Keys
from backends.plot.askers import SEVERAL, Askers, Fetched
from backends.plot.overlay_log import (
    LearnedFragments,
    LogOrigin,
    LogReader,
    LogWriter,
    overlay_folder,
    read_header,
    read_uses,
    write_uses,
)
from backends.plot.overlay_pool import OverlayPool

LOGGER = logging.getLogger(__name__)
_LEARNED = "some of what was learned"
_DISK_FULL = "no space left on the disk"
_USES_EVERY_S = 30.0
KEPT_S = 90 * 24 * 3600.0
"""What was learned is forgotten, at the next start, after so long without anything new."""
_COMPACT_ABOVE_BYTES = 4 << 20
# A disk that cannot keep up must not fill the memory.
MOST_UNWRITTEN = 16_384


class Overlay:
    """One domain version's learned fragments; without a `seat` nothing is written.

    `unwritten` bounds the fragments that wait to be written, of all overlays that share it. One that `is_private` has
    one tenant alone; in others nothing gets to disk that one tenant alone has asked for.
    """

    def __init__(
        self,
        name: str,
        pool: OverlayPool,
        table_folder: Path,
        origin: LogOrigin,
        seat: int | None,
        unwritten: Allowance | None = None,
    ) -> None:
        self.name = name
        self.is_private = False
        self._pool = pool
        self._owner = pool.new_owner()
        self._table_folder = table_folder
        self._folder = overlay_folder(table_folder)
        self.origin = origin
        self._writer = None if seat is None else LogWriter(origin.log_of(self._folder, seat), origin)
        self._readers: dict[Path, LogReader] = {}
        self._unwritten: list[tuple[Keys, Float16Array]] = []
        self._unwritten_lock = threading.Lock()
        self._unwritten_allowance = unwritten or Allowance(MOST_UNWRITTEN)
        self._is_closed = False
        self._uses_written_s = time.monotonic()
        self._in_trouble: set[Path] = set()
        self._noted_by_others = LearnedFragments.merged([], origin.layout.key)
        if seat is not None:
            self._take_over(self._folder / f"{seat}.log", origin.log_of(self._folder, seat))
        self._remove_old()
        self._load()

    def fetch(self, keys: Keys) -> Fetched:
        """Copies of the vectors of those fragments that were learned.

        Shape: keys [K]
        """
        return self._pool.fetch(self._owner, keys)

    def contains(self, keys: Keys) -> Found:
        return self._pool.contains(self._owner, keys)

    def add(self, keys: Keys, vectors: Float16Array, askers: Askers | None = None) -> None:
        """Learn distinct fragments: found from now on, on disk a moment later.

        Shape: keys, askers [K], vectors [K, width]
        """
        with self._unwritten_lock:
            if self._is_closed:  # a request may still hold it; what it adds could never be released
                return
            self._pool.add(self._owner, keys, vectors, np.ones(keys.size, np.uint32), askers)
            if askers is not None and not self.is_private:
                keys, vectors = keys[askers == SEVERAL], vectors[askers == SEVERAL]
            self._will_write(keys, vectors)

    def note(self, keys: Keys, askers: Askers) -> None:
        """Note who else asks for fragments that are here; they get to disk a moment later.

        Shape: keys, askers [K]
        """
        shared = np.unique(keys[self._pool.newly_shared(self._owner, keys, askers)])
        if shared.size:
            vectors, found, _ = self.fetch(shared)
            with self._unwritten_lock:
                self._will_write(shared[found], vectors)

    def _will_write(self, keys: Keys, vectors: Float16Array) -> None:
        """Queue fragments for the log; the lock is held."""
        if self._writer is not None and not self._is_closed and (granted := self._unwritten_allowance.take(keys.size)):
            self._unwritten.append((keys[:granted], vectors[:granted]))

    def sync(self) -> None:
        """Write new fragments of this process and read those of others."""
        with self._only_logged(self._folder, _LEARNED):
            self._write()
            self._read_new([path for path in self._logs() if self._writer is None or path != self._writer.path])
        if time.monotonic() - self._uses_written_s > _USES_EVERY_S:
            self._write_uses()

    def close(self) -> None:
        with self._unwritten_lock:
            self._is_closed = True
        with self._only_logged(self._folder, _LEARNED):
            self._write()
            self._write_uses()
        self._pool.release(self._owner)

    def _take_over(self, old: Path, log: Path) -> None:
        """Go on with the log of an earlier release, whose name has no layers in it."""
        with self._only_logged(old, _LEARNED):
            if old.is_file() and not log.exists() and LogOrigin.of(read_header(old)) == self.origin:
                with suppress(FileNotFoundError):
                    old.with_suffix(".uses").replace(log.with_suffix(".uses"))
                old.replace(log)

    def _remove_old(self) -> None:
        """Forget the logs to which nothing was added for long."""
        with self._only_logged(self._folder, _LEARNED):
            for log in self._logs():
                if time.time() - log.stat().st_mtime > KEPT_S:
                    log.unlink(missing_ok=True)
                    log.with_suffix(".uses").unlink(missing_ok=True)

    def _load(self) -> None:
        noted = {}
        for log in self._logs():
            is_ours, uses = False, log.with_suffix(".uses")
            with self._only_logged(log, _LEARNED):
                is_ours = LogOrigin.of(read_header(log)) == self.origin
            if is_ours:
                with self._only_logged(uses, "how often that was used"):
                    noted[log] = read_uses(uses, self.origin.layout.key)
        known = LearnedFragments.merged(list(noted.values()), self.origin.layout.key)
        if self._writer is not None:
            noted.pop(self._writer.path, None)
        self._noted_by_others = LearnedFragments.merged(list(noted.values()), self.origin.layout.key)
        self._read_new(self._logs(), known)

    def _logs(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))

    def _read_new(self, paths: Sequence[Path], known: LearnedFragments | None = None) -> None:
        for path in paths:
            reader = self._readers.setdefault(path, LogReader(path, self.origin))
            with self._only_logged(path, _LEARNED):
                for records in reader.read():
                    keys: Keys = records["key"]
                    uses = known.uses_of(keys) if known else np.ones(keys.size, np.uint32)
                    self._pool.add(self._owner, keys, records["vectors"], uses)

    def _write(self) -> None:
        with self._unwritten_lock:
            unwritten, self._unwritten = self._unwritten, []
        try:
            # The table is gone where its domain version was deleted meanwhile.
            if self._writer is not None and unwritten and self._table_folder.exists():
                with self._only_logged(self._writer.path, "keeping on disk what it learns"):
                    self._append(self._writer, unwritten)
        finally:
            self._unwritten_allowance.give_back(sum(keys.size for keys, _ in unwritten))

    def _append(self, writer: LogWriter, unwritten: Sequence[tuple[Keys, Float16Array]]) -> None:
        keys, vectors = (np.concatenate(part) for part in zip(*unwritten, strict=True))
        writer.append(keys, vectors)
        held_bytes = self._pool.fragments(self._owner).keys.size * self.origin.layout.record.itemsize
        if writer.size_bytes > max(2 * held_bytes, _COMPACT_ABOVE_BYTES):
            writer.compact(self.contains)

    def _write_uses(self) -> None:
        self._uses_written_s = time.monotonic()
        held = self._pool.fragments(self._owner, of_several=not self.is_private)
        if self._writer is None or not held.keys.size or not self._writer.path.is_file():
            return
        # What others have noted is theirs to note, or the sum of all would grow with every restart.
        others = np.minimum(self._noted_by_others.uses_of(held.keys), held.uses)
        path = self._writer.path.with_suffix(".uses")
        with self._only_logged(path, "noting how often it used what it learned"):
            write_uses(path, LearnedFragments(held.keys, held.uses - others))

    @contextmanager
    def _only_logged(self, path: Path, what: str) -> Iterator[None]:
        """Log the first error of a file, and no more until it works again; `what` is missing meanwhile."""
        try:
            yield
            self._in_trouble.discard(path)
        except (OSError, StorageFullError) as error:
            if path not in self._in_trouble:
                why = _DISK_FULL if isinstance(error, StorageFullError) else error.strerror or error
                LOGGER.warning("%s goes on without %s: %s: %s", self.name, what, path, why)
            self._in_trouble.add(path)
