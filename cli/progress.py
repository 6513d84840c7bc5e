"""The progress of a build on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from builder.progress import Report, progress_bars
from cli.exit_codes import INTERRUPTED


@contextmanager
def resumable_progress(title: str) -> Iterator[Report]:
    """Progress of a build that its own command takes up again, and that says so when it is interrupted."""
    with progress_bars(title) as report:
        try:
            yield report
        except KeyboardInterrupt:
            sys.stderr.write("hplm: interrupted; the same command goes on where this one was\n")
            sys.exit(INTERRUPTED)
