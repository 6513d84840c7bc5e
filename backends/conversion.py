"""Tensors in another dtype, on another device.

From fp16 to bf16 PyTorch goes number by number on a CPU. By way of fp32 it takes half as long, and in blocks that stay
in the cache a third.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BLOCK_NUMBERS = 1 << 17
"""512 KB in fp32."""


def converted(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor itself where it is so already."""
    if not _is_slow(tensor, dtype, device):
        return tensor.to(device=device, dtype=dtype)
    target = torch.empty_like(tensor, dtype=dtype)
    convert_into(target, tensor)
    return target


def convert_into(target: Tensor, source: Tensor) -> None:
    """Copy into a tensor of the same shape."""
    if not _is_slow(source, target.dtype, target.device):
        target.copy_(source)
        return
    at_once = max(1, _BLOCK_NUMBERS // max(1, math.prod(source.shape[1:])))
    for block, part in zip(target.split(at_once), source.split(at_once), strict=True):
        block.copy_(part.float())


def _is_slow(source: Tensor, dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype == torch.bfloat16 and source.dtype == torch.float16
