"""The certificates of an encrypted connection: whom the client trusts, and how it proves who it is."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from hplm_client.authorities import system_authorities
from hplm_client.errors import InvalidRequestError

_GRPC_ROOTS_VARIABLE = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
"""Names a file of authorities, which gRPC trusts instead of its own list."""


@dataclass(frozen=True)
class Certificates:
    """Files in PEM.

    Args:
        ca: Certificates of the authorities that may have signed the server's; without it, those of the system.
        certificate: The client's own, for servers that ask for one.
        key: Its key.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequestError("a client's certificate needs its key, and a key its certificate")
        for path in filter(None, (self.ca, self.certificate, self.key)):
            if not os.access(path, os.R_OK):
                raise InvalidRequestError(f"the file {path!r} cannot be read")
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return them as Python's own library takes them."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise InvalidRequestError(f"the certificates cannot be used: {error.strerror or error}") from error
        return context

    def for_grpc(self) -> dict[str, Any]:
        """Return them as arguments of tritonclient's gRPC clients."""
        import grpc  # HTTP does without

        return {"creds": grpc.ssl_channel_credentials(self._roots(), _content(self.key), _content(self.certificate))}

    def _roots(self) -> bytes | None:
        """Return those to trust; None leaves it to gRPC, which has a list of its own and a variable for it."""
        if self.ca is None and not os.environ.get(_GRPC_ROOTS_VARIABLE):
            return system_authorities()
        return _content(self.ca)


Ssl = Union[bool, str, Certificates]


def certificates_of(given: Ssl | None) -> Certificates | None:
    """Return what a client's `ssl` means; None for a connection that is not encrypted."""
    if isinstance(given, Certificates):
        return given
    if isinstance(given, str):
        return Certificates(ca=given)
    return Certificates() if given else None


def _content(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
