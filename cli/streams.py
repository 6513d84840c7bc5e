"""The standard streams of a command."""

from __future__ import annotations

import io
import sys
from typing import TextIO


def is_unicode(stream: TextIO) -> bool:
    """Whether a stream's encoding has all characters."""
    return (stream.encoding or "utf-8").lower().replace("-", "").startswith("utf")


def take_any_text() -> None:
    """Let the streams print a question mark for what the locale's encoding lacks, where they would raise an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
