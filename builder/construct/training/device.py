"""The device that a training runs on, by its name."""

from __future__ import annotations

import torch
from torch import nn

from backends.errors import InvalidArgumentError
from backends.root.packed import cpu_multiplies_bf16
from builder.settings.device import AUTO

CPU = torch.device("cpu")


def training_device(name: str) -> torch.device:
    """Find the device; `auto` takes the first GPU, or the CPU where there is none.

    Raises:
        InvalidArgumentError: This machine does not have it.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == AUTO:
        name = "cuda" if count else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        has = f"{count} CUDA devices, counted from 0" if count else "no CUDA device that PyTorch can use"
        raise InvalidArgumentError(f"--device {name}: this machine has {has}")
    return device


def mixed_precision(device: torch.device) -> torch.autocast:
    """Compute products in bf16, but on a CPU without instructions for it, where fp32 takes a seventh of the time."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type != "cpu" or cpu_multiplies_bf16())


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
