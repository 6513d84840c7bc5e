"""Limits of the products that a process keeps compiled; a CPU compiles a product for each shape that occurs."""

from __future__ import annotations

import os

_KEPT = "256"
"""Number of products of a kind. Batches of mixed lengths bring new shapes all the time; more products take memory and
give no more throughput.
"""
_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Limits of oneDNN, for code, and of PyTorch's layer above it, for descriptions of a quarter of a megabyte each."""


def limit_compiled_products() -> None:
    """Keep the products used last. Call this before PyTorch is loaded; variables that are set already are kept."""
    for variable in _VARIABLES:
        os.environ.setdefault(variable, _KEPT)
