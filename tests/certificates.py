"""A certificate authority of a test's own, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", *_new_key(self._key), "-days", "2", "-subj", f"/CN={name}", "-out", self.certificate)

    def sign(self, name: str) -> tuple[Path, Path]:
        """Make a key and its certificate, for this machine."""
        certificate, key, request = (self._folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl("req", *_new_key(key), "-subj", f"/CN={name}", "-out", request)
        authority = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, *authority, "-days", "2", "-out", certificate)
        return certificate, key


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
