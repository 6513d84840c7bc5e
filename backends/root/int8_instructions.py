"""What the processor has for products in int8."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

_SIZE = 64
_WEIGHT, _INPUT = 127, 255


def int8_instructions() -> Literal["VNNI", "AVX2"] | None:
    """Return the best instructions that products in int8 have on this machine's processor.

    PyTorch knows the VNNI of AVX-512 only; processors with AVX-VNNI count as AVX2.
    """
    if torch.cpu._is_vnni_supported() and _adds_in_32_bits():
        return "VNNI"
    return "AVX2" if torch.cpu._is_avx2_supported() else None


@cache
def _adds_in_32_bits() -> bool:
    """Whether the largest sums are exact; they are cut off where ONEDNN_MAX_CPU_ISA keeps products from using VNNI."""
    weight = torch.full((_SIZE, _SIZE), _WEIGHT, dtype=torch.int8)
    product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        *(torch.full((_SIZE, _SIZE), _INPUT, dtype=torch.uint8), 1.0, 0),
        *(torch.ops.onednn.qlinear_prepack(weight, None), torch.ones(_SIZE), torch.zeros(_SIZE, dtype=torch.int64)),
        *(None, 1.0, 0, torch.float32),
        *("none", [], ""),
    )
    return bool((product == _SIZE * _WEIGHT * _INPUT).all())
