"""How many products a process keeps compiled: a CPU's are compiled for each shape that they meet."""

from __future__ import annotations

import os

_KEPT = "256"
"""Of a kind. Batches of mixed lengths go on bringing new shapes. Four times as many gave no more rows a second with
random lengths (0.97 to 1.09 of the rows, in three pairs of a minute each), and took 30 to 60 MB more after the minute.
"""
_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN, for their code, and of PyTorch's layer above it, for their descriptions: a quarter of a megabyte each."""


def keep_few() -> None:
    """Keep those used last. To be called before PyTorch is loaded; what the environment says already stays as it is."""
    for variable in _VARIABLES:
        os.environ.setdefault(variable, _KEPT)
