"""The certificates of a server's gRPC port, and Triton's flags for them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from backends.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. With `client_ca`, clients need certificates that it has signed.

    Raises:
        InvalidArgumentError: A file cannot be read, or the key is not the certificate's.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for file in filter(None, (self.certificate, self.key, self.client_ca)):
            if not file.is_file():
                raise InvalidArgumentError(f"there is no file {file}")
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # one of ssl is an OSError
            reason = getattr(error, "reason", None) or error
            raise InvalidArgumentError(
                f"{self.certificate} and {self.key} are no certificate and its key: {reason}"
            ) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise InvalidArgumentError(f"{self.client_ca} holds no certificates in PEM") from error

    @property
    def arguments(self) -> list[str]:
        """Return Triton's arguments."""
        server = [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={self.certificate.absolute()}",
            f"--grpc-server-key={self.key.absolute()}",
        ]
        if self.client_ca is None:
            return server
        return [*server, "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={self.client_ca.absolute()}"]


def tls_of(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    """Return what the options of a command come to; None where none is given."""
    if certificate is None or key is None:
        if (certificate, key, client_ca) != (None, None, None):
            raise InvalidArgumentError("TLS needs both --tls-cert and --tls-key")
        return None
    return Tls(certificate, key, client_ca)


def _no_password() -> str:
    raise ValueError("the key is encrypted, and Triton asks for no password")
