"""The folder where the processes of one server leave what they tell each other."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FOLDER_VARIABLE = "HPLM_SIGNALS"
"""Names a folder that goes with its server; without it the files lie among the machine's temporary ones."""


def server_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())


def file_prefix(kind: str, server: int | None = None) -> str:
    """Return what the names of a server's files begin with; by default of the parent, as of models' processes."""
    return f"hplm-{kind}-{os.getppid() if server is None else server}"
