"""The context that every job works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.home import Home
from backends.registry.registry import Registry
from builder.executors.mapping import ParallelMap
from builder.manager.uploads import Uploads
from builder.progress import Report
from builder.requests.base import Request


@dataclass(frozen=True)
class JobContext:
    """The home that a job changes, and how it reports and spreads its work."""

    home: Home
    registry: Registry
    uploads: Uploads
    report: Report
    fan_out: ParallelMap

    def upload_paths(self, request: Request) -> dict[Path, Path]:
        """Find the files that a request names as uploads; an upload of another kind is rejected."""
        return {upload: self.uploads.content(str(upload), kind) for upload, kind in request.files.items()}
