"""Garbage collection: objects that a process keeps for good are not searched again and again."""

from __future__ import annotations

import gc


def exclude_loaded_objects() -> None:
    """Exclude all present objects from later collections; call this once everything is loaded."""
    gc.collect()
    gc.freeze()
