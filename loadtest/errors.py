"""The error of this room; its message is one line for the user who runs a load test."""

from __future__ import annotations


class RunError(Exception):
    """A load test that cannot be run, or whose results cannot be read."""


class MissingError(RunError):
    """Nothing has this name: no hPLM of the server, no folder of a run."""


class OccupiedError(RunError):
    """The folder of a new run holds something already."""
