"""Garbage collection: objects that a process keeps for good are not searched again and again."""

from __future__ import annotations

import gc


def pause_collection() -> None:
    """Search for no garbage while modules are imported and weights loaded, which makes hardly any; call this first."""
    gc.disable()


def exclude_loaded_objects() -> None:
    """Exclude all present objects from later collections; call this once everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.enable()
