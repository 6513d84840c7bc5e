"""The `hplm` command."""

from __future__ import annotations

import json
import sys

from backends.openmp import limit_spinning
from builder.termination import termination_interrupts
from cli.stopping import exit_code_of
from cli.streams import is_unicode, take_any_text


def main() -> None:
    """Run the command; what goes wrong is one line on stderr and an exit code above zero."""
    limit_spinning()
    take_any_text()
    with termination_interrupts():
        _run()


def _run() -> None:
    try:
        from cli.app import app  # here, because it takes a second, in which one may think better of it

        sys.exit(app(prog_name="hplm", standalone_mode=False))
    except KeyboardInterrupt as stop:
        sys.stderr.write("hplm: interrupted\n")
        sys.exit(exit_code_of(stop))
    except Exception as error:
        from cli.failures import described

        failure = described(error)
        if failure is None:
            raise
        if "--json" in sys.argv:
            sys.stderr.write(json.dumps({"error": failure.to_json()}, ensure_ascii=not is_unicode(sys.stderr)) + "\n")
        elif failure.message:
            sys.stderr.write(f"hplm: {failure.message}\n")
        sys.exit(failure.exit_code)
