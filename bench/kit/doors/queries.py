"""Counts what a model's process asks the registry for, besides its look for changes; appended to the model's code."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from shutil import copytree
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from bench.kit.model_code import append_to_model
from builder.export.repository import installed_code

_REFRESHING = "registry-snapshot"


def count_queries(path: str) -> None:
    """Add a byte to a file for each statement."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(*_: Any) -> None:
        if threading.current_thread().name != _REFRESHING:
            os.write(descriptor, b"q")

    event.listen(Engine, "before_cursor_execute", note)


class QueryCounter:
    """The code of the models in a folder, in which `hplm_upper` counts its queries."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "queries"
        self.code = folder / "code"
        copytree(installed_code(), self.code)
        code = "from bench.kit.doors.queries import count_queries\n\n"
        append_to_model(
            self.code / "hplm_upper",
            f"{code}_initialize = TritonPythonModel.initialize\n\n\n"
            "def _initialize_and_count(self, args):\n"
            "    _initialize(self, args)\n"
            f"    count_queries({str(self._path)!r})\n\n\n"
            "TritonPythonModel.initialize = _initialize_and_count\n",
        )

    @property
    def count(self) -> int:
        return self._path.stat().st_size
