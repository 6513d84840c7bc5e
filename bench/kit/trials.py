"""Rows that a long bench has measured so far: an interrupted one goes on with the trials that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.errors import InvalidArgumentError
from backends.storage import json_checksum, read_json, write_json


class Trials:
    """The rows of each trial, in a file whose name stands for all that they depend on; without a folder none is kept.

    Args:
        folder: Where the files are.
        described: What all trials depend on.

    Raises:
        InvalidArgumentError: There cannot be such a folder.
    """

    def __init__(self, folder: Path | None, described: Mapping[str, Any]) -> None:
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidArgumentError(f"trials cannot be kept in {folder}: {error.strerror}") from error
        self._folder = folder
        self.key = json_checksum(dict(described))[:12]

    def find(self, trial: str) -> list[dict[str, Any]] | None:
        path = self._path(trial)
        return [dict(row) for row in read_json(path)["rows"]] if path is not None and path.exists() else None

    def keep(self, trial: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if (path := self._path(trial)) is not None:
            write_json(path, {"rows": [list(row.items()) for row in rows]})

    def _path(self, trial: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{trial}-{self.key}.json"
