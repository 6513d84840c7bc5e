"""What an apply notes of itself, so that a killed one goes on where it stopped.

What a server runs with says already whether it is as wanted. Only of a restart for its own sake the servers themselves
show nothing: for that the journal keeps the processes that ran before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backends.fields import read_fields
from backends.storage import write_json

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class ApplyJournal:
    """An apply that has begun; `to_end` are processes that are to be restarted, by server."""

    to_end: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> ApplyJournal | None:
        """Read what an apply has left that did not finish; None where there is none.

        Raises:
            FileError: The file is damaged, or of a newer format.
        """
        if not path.exists():
            return None
        processes = read_fields(path, _FORMAT_VERSION).part("to_end")
        return cls({server: processes.whole(server) for server in processes.names()})

    def write(self, path: Path) -> None:
        write_json(path, {"format_version": _FORMAT_VERSION, "to_end": dict(self.to_end)})
