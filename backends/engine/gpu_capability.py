"""What GPUs need for quantised products; apart from PyTorch, so that commands can read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Capability = tuple[int, int]
"""Compute capability of a GPU, as CUDA counts it."""
LEAST_CAPABILITY: Mapping[str, Capability] = MappingProxyType({"fp8": (8, 9), "int8": (7, 5)})
"""By dtype; the others run on every GPU."""
