"""The demo's homes have registries of their own."""

from __future__ import annotations

import os

from backends.errors import InvalidArgumentError
from backends.home import REGISTRY_VARIABLE


def require_own_registry() -> None:
    """Keep the demo's hPLMs out of a registry that other homes use."""
    if os.environ.get(REGISTRY_VARIABLE):
        raise InvalidArgumentError(f"{REGISTRY_VARIABLE} is set, but this home has a registry of its own; unset it")
