"""Tensors in another dtype, on another device.

From fp16 to bf16 PyTorch goes number by number on a CPU. By way of fp32 it takes half as long, and in blocks that stay
in the cache a third. Each thread has its block for good: a C library that gives back what a thread frees, and asks for
it again with the next block, takes as long as the conversion, and holds up all other threads.

On the way to a GPU, PyTorch would convert these on the CPU first, so they are copied as they are, and the GPU converts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK_NUMBERS = 1 << 18
"""1 MB in fp32."""
_FEW_NUMBERS = 1 << 15
"""Up to this number, converting elements one by one is faster than filling and reading a block."""


class _Block(threading.local):
    def __init__(self) -> None:
        with torch.inference_mode(False):  # or it could be written in that mode only
            self.numbers = torch.empty(_BLOCK_NUMBERS, dtype=torch.float32, device="cpu")


_BLOCK = _Block()


def converted(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The tensor itself where it is so already."""
    if not _is_fp16_to_bf16(tensor, dtype):
        return tensor.to(device=device, dtype=dtype)
    if device.type != "cpu" or not _is_slow(tensor, dtype):
        return tensor.to(device).to(dtype)
    target = torch.empty_like(tensor, dtype=dtype)
    convert_into(target, tensor)
    return target


def concatenated(rows: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Lay rows `[L_i, …]` end to end, converted. A block takes in as many of them as it holds, in one pass of each."""
    of_row = rows[0][0].numel()
    if device.type != "cpu" or not _is_fp16_to_bf16(rows[0], dtype) or of_row > _BLOCK_NUMBERS:
        return converted(torch.cat(list(rows)), dtype, device)
    target = torch.empty(sum(row.shape[0] for row in rows), *rows[0].shape[1:], dtype=dtype)
    room = _BLOCK_NUMBERS // of_row
    block = _BLOCK.numbers[: room * of_row].view(room, *rows[0].shape[1:])
    done = in_block = 0
    for piece in (piece for row in rows for piece in (torch.split(row, room) if row.shape[0] > room else (row,))):
        length = piece.shape[0]
        if in_block + length > room:
            target[done : done + in_block].copy_(block[:in_block])
            done, in_block = done + in_block, 0
        block[in_block : in_block + length].copy_(piece)
        in_block += length
    target[done:].copy_(block[:in_block])
    return target


def convert_into(target: Tensor, source: Tensor) -> None:
    """Copy into a tensor of the same shape."""
    if source.ndim > 1 and source.stride(-1) != 1:  # transposed it is contiguous
        target, source = target.mT, source.mT
    if target.device.type != "cpu" and _is_fp16_to_bf16(source, target.dtype):
        target.copy_(source.to(target.device))
    elif target.device.type == "cpu" and _is_slow(source, target.dtype):
        _convert(target, source.detach())
    else:
        target.copy_(source)


def _is_slow(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether PyTorch takes long to convert it on a CPU."""
    return _is_fp16_to_bf16(tensor, dtype) and tensor.numel() > _FEW_NUMBERS


def _is_fp16_to_bf16(tensor: Tensor, dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and tensor.dtype == torch.float16


def _convert(target: Tensor, source: Tensor) -> None:
    size = source.numel()
    if size <= _BLOCK_NUMBERS:
        target.copy_(_BLOCK.numbers[:size].view(source.shape).copy_(source))
    elif len(source) == 1:
        _convert(target[0], source[0])
    else:
        at_once = max(1, _BLOCK_NUMBERS * len(source) // size)
        for start in range(0, len(source), at_once):
            _convert(target[start : start + at_once], source[start : start + at_once])
