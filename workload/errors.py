"""The error of this room; its message is one line for the user who described the load."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A setting or a trace from which no load can be made."""
