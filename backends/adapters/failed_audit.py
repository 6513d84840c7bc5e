"""What a server notes beside a version whose early answers have failed the audit: `audit.json`.

It names the ladder, so that versions that link to the same files keep it, and a new ladder is audited anew.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from backends.adapters.ladder import LADDER_FILES
from backends.errors import FileError, HplmError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.storage import file_checksum, read_errors_are_clear, read_json, write_json

LOGGER = logging.getLogger(__name__)
_FILE = "audit.json"
_FORMAT_VERSION = 1


def note_failed_audit(home: Home, entry: HplmEntry, texts: int, different: int) -> None:
    """Note how many early answers of so many texts differed; a home that nothing may be written to only warns."""
    folder, counts = home.path / entry.folder, {"texts": texts, "different": different}
    try:
        with read_errors_are_clear(folder):
            write_json(folder / _FILE, {"format_version": _FORMAT_VERSION, "ladder": _ladder_of(folder), **counts})
    except (OSError, HplmError) as error:
        LOGGER.warning("that the audit of %s failed is forgotten at a restart: %s", entry.id, error)


def read_failed_audit(folder: Path) -> dict[str, Any] | None:
    """Return what was noted of the version's ladder, if anything was.

    A note that is damaged says no more than that it was there: as a broken promise is worse than a late answer, it
    counts.
    """
    if not (folder / _FILE).exists():
        return None
    try:
        noted = read_json(folder / _FILE)
        return noted if noted.get("ladder") == _ladder_of(folder) else None
    except FileError:
        return {}


def _ladder_of(folder: Path) -> str:
    return file_checksum(folder / LADDER_FILES[0])
