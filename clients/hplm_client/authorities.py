"""The authorities that this system trusts, for libraries that do not ask it."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

_CERTIFICATE = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d+")
"""The names by which OpenSSL finds certificates in a folder."""


def system_authorities() -> bytes | None:
    """Return the certificates that Python trusts on this system, in PEM, each once; None where it knows none.

    SSL_CERT_FILE and SSL_CERT_DIR name others, as for every program that uses OpenSSL.
    """
    found = [one for path in _files() if os.access(path, os.R_OK) for one in _CERTIFICATE.findall(path.read_bytes())]
    if not found:  # on Windows they lie in no file
        loaded = ssl.create_default_context().get_ca_certs(binary_form=True)
        found = [ssl.DER_cert_to_PEM_cert(one).encode() for one in loaded]
    return b"\n".join(dict.fromkeys(found)) or None


def _files() -> Iterator[Path]:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        yield Path(paths.cafile)
    if paths.capath:
        yield from sorted(path for path in Path(paths.capath).iterdir() if _HASHED_NAME.fullmatch(path.name))
