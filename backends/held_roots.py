"""The roots that a server of a fleet holds: it loads them at its start, and others when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable

ROOTS_VARIABLE = "HPLM_ROOTS"
"""Names separated by commas; without it a server holds all roots."""
Roots = tuple[str, ...] | None
"""None stands for all."""


def held_roots() -> Roots:
    """Return the roots that this process is to hold."""
    names = os.environ.get(ROOTS_VARIABLE)
    return None if names is None else tuple(filter(None, names.split(",")))


def roots_environment(roots: Roots) -> dict[str, str]:
    """Return the variables that tell a server."""
    return {} if roots is None else {ROOTS_VARIABLE: ",".join(roots)}


def holds(roots: Roots, root: str) -> bool:
    return roots is None or root in roots


def in_words(roots: Iterable[str] | None) -> str:
    return "all" if roots is None else ", ".join(roots) or "none"
