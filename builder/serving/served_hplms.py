"""HPLMs for the canary of a server."""

from __future__ import annotations

from backends.held_roots import Roots, holds
from backends.home import Home
from backends.registry.registry import Registry

_MOST_BESIDE = 8
"""The canary asks another one after an error; about as many as it can before that counts as one of the server."""


def some_hplms(home: Home, roots: Roots = None) -> list[str]:
    """Return some of the hPLMs that are served: one of each root, or of these, then others."""
    registry = Registry.open(home)
    try:
        found = [*map(registry.hplm, registry.hplm_of_each_root()), *registry.hplm_page(_MOST_BESIDE)]
        return list(dict.fromkeys(entry.id for entry in found if holds(roots, entry.domain.root)))
    finally:
        registry.close()
