"""Errors between a rendered repository and a ready server."""

from __future__ import annotations

from backends.errors import ConflictError, HplmError, NotFoundError, UnavailableError


class TritonMissingError(NotFoundError):
    """No tritonserver, or none that fits the running Python."""


class PortInUseError(ConflictError):
    """A requested port belongs to another program."""


class BusyError(ConflictError):
    """Another order is at work; the same one may be given again after that."""


class ServerStartError(HplmError):
    """The server process ended before it was ready; the message carries its reason."""


class ServerNotReadyError(UnavailableError):
    """The server runs but was not ready in time."""
