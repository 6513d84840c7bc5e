"""The exit codes of `hplm`. Users' scripts read them, so a number never changes its meaning."""

from __future__ import annotations

FAILED = 1
"""Anything else that went wrong."""
USAGE = 2
"""The command line, or the content of a file that it names, cannot be understood."""
NOT_FOUND = 3
CONFLICT = 4
"""The name exists already, or a dependency forbids it."""
UNAVAILABLE = 5
"""A server cannot be reached or rejects for now, or the disk is full; the same command may succeed later."""
DAMAGED = 6
"""A file is not as it was written."""
THRESHOLD_MISSED = 7
"""The command ran, and its result is below what was asked: a load test sent late, a worse update, a missed target."""
INTERRUPTED = 130
TERMINATED = 143
"""SIGTERM ended the command."""
