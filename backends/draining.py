"""The sign by which `hplm serve` has its models reject new requests, while they finish what they have accepted."""

from __future__ import annotations

import os
from pathlib import Path

from backends.errors import UnavailableError
from backends.server_folder import FOLDER_VARIABLE

_FILE_NAME = "hplm-draining"


def begin_draining(folder: Path) -> None:
    """Set the sign in the folder of a server."""
    draining_sign(folder).touch()


def draining_sign(folder: Path) -> Path:
    """Return the file that is there once the sign is set."""
    return folder / _FILE_NAME


def is_draining() -> bool:
    """Whether the sign is set for the server of this process; takes a few microseconds."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return folder is not None and os.path.exists(f"{folder}/{_FILE_NAME}")


def draining_error() -> UnavailableError:
    # The SDK knows the first words, which are Triton's own: the request was not executed and may be sent again.
    return UnavailableError("server is stopping: it finishes what it has accepted, and accepts nothing new")
