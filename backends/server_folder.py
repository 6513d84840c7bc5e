"""The folder where the processes of one server leave what they tell each other."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FOLDER_VARIABLE = "HPLM_SIGNALS"
"""Names a folder that goes with its server; without it the files lie among the machine's temporary ones."""


def server_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())


def file_prefix(kind: str) -> str:
    """The models' processes of one server have it for their parent."""
    return f"hplm-{kind}-{os.getppid()}"
