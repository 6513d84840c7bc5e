"""What is wrong with a load that somebody asked for, or with a run of it, in one line."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A setting or a trace that no load can be made of."""


class RunError(Exception):
    """A load test that cannot be run, or whose results cannot be read."""
