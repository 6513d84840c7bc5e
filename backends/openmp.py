"""How the threads that share an operation wait for each other."""

from __future__ import annotations

import os

_SPINS = "5000"
"""Measured on two cores: about as long as the gaps between a layer's operations."""


def wait_briefly() -> None:
    """Have them spin for some microseconds and then sleep. To be called before PyTorch is loaded.

    Threads that spin on take the cores from whoever else is on the machine, and each operation then lasts as long as a
    time slice of the operating system; threads that sleep at once have to be woken for every operation, which takes
    longer than most of them. What the environment says already stays as it is.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
