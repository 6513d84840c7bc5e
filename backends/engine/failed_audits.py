"""Which ladders have failed the audit, kept in a home: `audits/LADDER.DTYPE.json`, by the checksum of `levels.json`.

So servers to come know, whichever version has that ladder. Another ladder, and another dtype of the upper layers, are
audited anew. A file stands for a failure whatever it holds; without it a server finds out again.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.adapters.ladder import LADDER_FILES
from backends.errors import HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.storage import file_checksum, read_json, write_json

LOGGER = logging.getLogger(__name__)
_FORMAT_VERSION = 1
_READABLE = 0o644


@dataclass(frozen=True)
class FailedAudits:
    """Holds the versions whose ladders failed on servers that compute in one dtype, and takes new ones."""

    home: Home
    dtype: str

    def __contains__(self, entry: HplmEntry) -> bool:
        # Most homes have none, and need not read the ladder again.
        return os.path.exists(self.home.audits) and os.path.exists(self._path(entry))

    def note(self, entry: HplmEntry, texts: int, different: int) -> None:
        """Note how many early answers of so many texts differed; a home that nothing may be written to only warns."""
        found = {"hplm": entry.id, "version": entry.version, "texts": texts, "different": different}
        try:
            path = self._path(entry)
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                path.parent.chmod(_READABLE | 0o111)
            write_json(path, {"format_version": _FORMAT_VERSION, **found})
            path.chmod(_READABLE)  # other users of the home read it, too
        except (OSError, HplmError) as error:
            LOGGER.warning("that the audit of %s failed is forgotten at a restart: %s", entry.id, error)

    def _path(self, entry: HplmEntry) -> Path:
        return self.home.audits / f"{_ladder_of(self.home, entry)}.{self.dtype}.json"


def noted_failures(home: Home, entry: HplmEntry) -> list[dict[str, Any]]:
    """Return what was noted of a version's ladder, in any dtype; nothing is known of a note that is damaged."""
    if not (home.audits.is_dir() and _ladder_file(home, entry).exists()):
        return []
    return [_read(path) for path in sorted(home.audits.glob(f"{_ladder_of(home, entry)}.*.json"))]


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, HplmError):
        return {}


def _ladder_of(home: Home, entry: HplmEntry) -> str:
    return file_checksum(_ladder_file(home, entry))


def _ladder_file(home: Home, entry: HplmEntry) -> Path:
    return home.path / entry.folder / LADDER_FILES[0]
