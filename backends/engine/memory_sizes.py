"""What a root's upper layers and the slots of its hPLMs take in memory: for budgets of devices, and for placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from backends.adapters.bank import weights_bytes

_SIZE_OF_DTYPE = {"fp32": 2.0, "int8": 0.5, "fp8": 0.5}
"""Of weights beside those on disk, which have two bytes each."""
_STORED_ITEMSIZE = torch.bfloat16.itemsize
_MOST_SAMPLED = 20


def layers_bytes(stored_bytes: int, dtype: str) -> int:
    """Return what layers take in a dtype that have so many bytes on disk."""
    return round(stored_bytes * _SIZE_OF_DTYPE.get(dtype, 1.0))


def slots_bytes(
    folders: Sequence[Path], slots: int, states: torch.dtype, size_of: Callable[[Path], int] = weights_bytes
) -> int:
    """Return what the slots take, by the mean size of some of the hPLMs' adapters; no more than there are hPLMs.

    Slots are in the data type of hidden states, and adapters on disk have two bytes a number.
    """
    if not folders:
        return 0
    sizes = []
    for folder in folders[:: max(1, len(folders) // _MOST_SAMPLED)]:
        try:
            sizes.append(size_of(folder))
        except OSError:  # such an hPLM is not served, and 'hplm verify' names it
            continue
    mean_bytes = sum(sizes) / max(1, len(sizes)) * states.itemsize / _STORED_ITEMSIZE
    return round(min(slots, len(folders)) * mean_bytes)
