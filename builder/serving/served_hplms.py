"""HPLMs for the canary of a server."""

from __future__ import annotations

from backends.home import Home
from backends.registry.registry import Registry

_MOST_BESIDE = 8
"""The canary asks another one after an error; about as many as it can before that counts as one of the server."""


def some_hplms(home: Home) -> list[str]:
    """Return some of the hPLMs that are served: one of each root, then others."""
    registry = Registry.open(home)
    try:
        first = (entry.id for entry in registry.hplm_page(_MOST_BESIDE))
        return list(dict.fromkeys([*registry.hplm_of_each_root(), *first]))
    finally:
        registry.close()
