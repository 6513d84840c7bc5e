"""Memory that a device does not have: how it shows, and what a client is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from backends.errors import HplmError, UnavailableError, presentable

_CPU_ALLOCATOR = "can't allocate memory"


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch has an error of its own for CUDA; for the CPU only the message tells."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)


@contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """For what is only tried."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


def told(error: Exception) -> HplmError:
    """The error as a client may see it."""
    if is_out_of_memory(error):
        return UnavailableError("the device is out of memory; try again")
    return presentable(error)
