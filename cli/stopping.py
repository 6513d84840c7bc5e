"""The exit codes of commands that a signal ends."""

from __future__ import annotations

from builder.termination import TerminatedError
from cli.exit_codes import INTERRUPTED, TERMINATED


def exit_code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, TerminatedError) else INTERRUPTED
