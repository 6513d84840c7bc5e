"""The `hplm` command."""

from __future__ import annotations

import sys

from backends.errors import HplmError
from backends.openmp import limit_spinning

INTERRUPTED = 130
"""The exit code of what Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run the command; what goes wrong is one line on stderr and an exit code above zero."""
    limit_spinning()
    try:
        from cli.app import app  # here, because it takes a second, in which one may think better of it

        app()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"hplm: {where}{error.strerror or error}")
    except KeyboardInterrupt:
        sys.stderr.write("hplm: interrupted\n")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if (line := _in_one_line(error)) is None:
            raise
        sys.exit(f"hplm: {line}")


def _in_one_line(error: Exception) -> str | None:
    """Reduce an error that is no defect of ours to the line that a user reads; None for a defect."""
    from pydantic import ValidationError

    from builder.requests.base import one_line
    from hplm_client import ClientError  # not above, where all commands would wait for them
    from loadtest.errors import RunError
    from workload.errors import WorkloadError

    if isinstance(error, ValidationError):
        return one_line(error)
    known = HplmError | ClientError | RunError | WorkloadError
    return str(error) if isinstance(error, known) else None
