"""The progress of a build on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from builder.progress import Report, in_words, progress_bars
from cli.stopping import exit_code_of


@contextmanager
def resumable_progress(title: str, then: str | None = None, goes_on_by: str = "the same command") -> Iterator[Report]:
    """Show the progress of a build, and at its end how long it took and what to do next.

    An interrupted one says what goes on with it: by default its own command.
    """
    began_s = time.monotonic()
    with progress_bars(title) as report:
        try:
            yield report
        except KeyboardInterrupt as stop:
            sys.stderr.write(f"hplm: interrupted; {goes_on_by} goes on where this one was\n")
            sys.exit(exit_code_of(stop))
    step = "" if then is None else f"; next: {then}"
    sys.stderr.write(f"{title}: done in {in_words(time.monotonic() - began_s)}{step}\n")
