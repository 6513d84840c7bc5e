"""Errors of the device: out of memory, lost for good, and their words for clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from backends.errors import HplmError, UnavailableError, presentable

_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What the CPU's allocator says, CUDA beside PyTorch's allocator, and its library of products when it begins."""


class DeviceLostError(HplmError):
    """CUDA fails on every later call too, so the process has to end."""


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise an error for want of memory: a type of its own from PyTorch's allocator on CUDA, else a message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


@contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """Ignore that memory runs out in an optional step."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise


def require_device(device: torch.device) -> None:
    """Raise `DeviceLostError` where an error has left the device unusable, as CUDA's sticky errors do."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise DeviceLostError(f"the device {device} fails on every call: {error}") from error


def client_error(error: Exception) -> HplmError:
    """The error as a client may see it."""
    if is_out_of_memory(error):
        return UnavailableError("the device is out of memory; try again")
    return presentable(error)
