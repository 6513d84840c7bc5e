"""What a process makes once and keeps need not be looked through for garbage again and again."""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """Call it once everything is loaded: collections then look at what came since, which is little."""
    gc.collect()
    gc.freeze()
