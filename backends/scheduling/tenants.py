"""Whose a row is."""

from __future__ import annotations

_SEPARATOR = "/"
NO_TENANT = ""
"""Who is charged for rows of the server's own: no tenant has this name."""


def tenant_of(hplm: str) -> str:
    """The tenant of an hPLM's ID."""
    return hplm.partition(_SEPARATOR)[0]
