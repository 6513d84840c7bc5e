"""What is wrong with a load that somebody asked for, in one line."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A setting or a trace that no load can be made of."""
