"""Logs of learned fragments, and how often each was used, as processes that learn leave them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.home import Home
from backends.plot.overlay_log import (
    FragmentLayout,
    LearnedFragments,
    LogOrigin,
    LogReader,
    LogWriter,
    overlay_folder,
    overlay_keys,
    write_uses,
)
from backends.storage import read_errors_are_clear
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.target import Target

_WIDTH = 3 * 8
_FRAGMENTS = 20


class Overlays(Target):
    """Logs with damage are read as far as they are whole; a process goes on with them."""

    name = "overlays"
    cases = 20_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._table = scratch / "shop@1"
        self._origin = LogOrigin("0123456789abcdef" * 2, FragmentLayout(3, _WIDTH))
        folder = overlay_folder(self._table)
        folder.mkdir()
        self._keys = np.arange(1, _FRAGMENTS + 1, dtype=np.uint64)
        self._vectors = np.ones((_FRAGMENTS, _WIDTH), np.float16)
        LogWriter(folder / "0.log", self._origin).append(self._keys, self._vectors)
        write_uses(folder / "0.uses", LearnedFragments(self._keys, np.ones(_FRAGMENTS, np.uint32)))
        self._folder = BadFolder(folder, folder)

    def attempt(self, draw: Draw) -> None:
        with self._folder.damaged(draw) as folder:
            overlay_keys(self._table, self._origin.layout.key)
            with read_errors_are_clear(folder):  # a process that serves goes on without the log
                self._read(folder)

    def _read(self, folder: Path) -> None:
        for records in LogReader(folder / "0.log", self._origin).read():
            records["vectors"].sum()
