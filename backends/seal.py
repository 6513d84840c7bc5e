"""The seal on what one process of a server tells another through Triton, where callers could tell it just as well.

The key is random, of one server start, and lies in a file that only the server's user can read.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path

from backends.errors import CorruptFileError
from backends.server_folder import file_prefix, server_folder

SEAL_BYTES = 16
_KEY_BYTES = 32


class Seal:
    """Signs content with a keyed BLAKE2b, and tells what was signed with the same key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = blake2b(key=key, digest_size=SEAL_BYTES)

    @classmethod
    def of_server(cls) -> Seal:
        """The seal that all processes of this server share; the first one draws its key."""
        return cls(_shared_key(server_folder() / file_prefix("seal-key")))

    @classmethod
    def of_watched(cls, server: int, folder: Path) -> Seal:
        """The seal of a server's processes, for the program that has started it."""
        return cls(_shared_key(folder / file_prefix("seal-key", server)))

    @property
    def canary_token(self) -> str:
        """What the canary of the server's watchdog shows in place of a tenant's token."""
        return self.of(b"canary").hex()

    def of(self, content: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(content)
        return keyed.digest()

    def is_of(self, content: bytes, seal: bytes) -> bool:
        return compare_digest(self.of(content), seal)


OWN_SEAL = Seal(secrets.token_bytes(_KEY_BYTES))
"""For both halves in this process, without a server."""


def _shared_key(path: Path) -> bytes:
    """Read the key; where there is none yet, the file appears whole, with the key of whichever process is first."""
    if not path.exists():
        descriptor, drawn = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(drawn, path)
        finally:
            os.unlink(drawn)
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or len(key) != _KEY_BYTES:
        raise CorruptFileError(f"{path} is not a key that only this user can read")
    return key
