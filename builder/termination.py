"""SIGTERM as an exception, told apart from Ctrl-C by the exit code of a command."""

from __future__ import annotations


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came."""
