"""Settings of OpenMP: how the threads that share an operation wait for each other."""

from __future__ import annotations

import os

_SPINS = "5000"
"""About as long as the gaps between a layer's operations."""


def limit_spinning() -> None:
    """Let waiting threads spin for some microseconds and then sleep. Call this before PyTorch is loaded.

    Threads that spin for ever take the cores from other threads, and an operation then lasts as long as a time slice of
    the operating system. Threads that sleep at once must be woken for every operation, which takes longer than most
    operations. Variables that the environment sets already are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
