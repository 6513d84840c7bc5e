"""A training that has left the numbers ends: nothing that it made could be used."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.errors import HplmError


def require_finite(loss: Tensor, norm: Tensor, step: int) -> None:
    """Refuse a step whose loss, or whose gradients' norm, is no number; to be asked before the weights change."""
    if not (bool(torch.isfinite(loss)) and bool(torch.isfinite(norm))):
        raise HplmError(f"the training diverged at step {step}; try a lower learning rate")
