"""The end of a process that can serve nothing any more."""

from __future__ import annotations

import logging
import os

LOGGER = logging.getLogger(__name__)
EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h. Triton restarts no dead process, so `hplm serve` replaces the server."""


def leave_failed() -> None:
    """Leave a failed loop to its caller, in a process that goes on."""


def end_process() -> None:
    """End the process at once, with all of its threads; the caller has answered what waited."""
    LOGGER.critical("this process can serve nothing any more and ends with exit code %d", EXIT_CODE)
    logging.shutdown()
    os._exit(EXIT_CODE)
