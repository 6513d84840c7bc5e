"""Commands that the output names, as they have to be typed to go on with the same home."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from backends.home import HOME_VARIABLE, Home
from cli.options import DEFAULT_HOME


def command_on(home: Home, command: str) -> str:
    """Add `--home` to a command that would take another home without it."""
    taken = Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).absolute()
    return command if taken == home.path else f"{command} --home {shlex.quote(str(home.path))}"
