"""What the processor has for products in int8."""

from __future__ import annotations

from typing import Literal

import torch


def int8_instructions() -> Literal["VNNI", "AVX2"] | None:
    """Return the best instructions that this machine's processor has for products in int8.

    PyTorch knows the VNNI of AVX-512 only; processors with AVX-VNNI count as AVX2.
    """
    if torch.cpu._is_vnni_supported():
        return "VNNI"
    return "AVX2" if torch.cpu._is_avx2_supported() else None
