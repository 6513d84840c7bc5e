"""What is wrong with a run of a load test, in one line."""

from __future__ import annotations


class RunError(Exception):
    """A load test that cannot be run, or whose results cannot be read."""
