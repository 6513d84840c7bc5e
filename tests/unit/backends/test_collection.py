"""Garbage collection is off while a process loads, and then goes on without what was loaded."""

from __future__ import annotations

import gc

from backends.collection import exclude_loaded_objects, pause_collection


def test_collection_goes_on_without_what_was_loaded() -> None:
    frozen = gc.get_freeze_count()
    try:
        pause_collection()
        assert not gc.isenabled()
        exclude_loaded_objects()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.enable()
        gc.unfreeze()
