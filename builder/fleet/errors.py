"""Errors of a fleet."""

from __future__ import annotations

from backends.errors import HplmError, NotFoundError


class GatewayMissingError(NotFoundError):
    """No gateway program, or none that is new enough."""


class GatewayFailedError(HplmError):
    """The gateway ended, and is not started again; the message carries its reason."""


class NoFleetError(NotFoundError):
    """No fleet runs on the home."""
