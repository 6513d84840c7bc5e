"""An hPLM for the canary of a server."""

from __future__ import annotations

from backends.home import Home
from backends.registry.registry import Registry


def any_hplm(home: Home) -> str | None:
    """Return one of the hPLMs that are served; None where there is none."""
    registry = Registry.open(home)
    try:
        return next((entry.id for entry in registry.hplm_page(1)), None)
    finally:
        registry.close()
