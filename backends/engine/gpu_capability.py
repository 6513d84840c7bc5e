"""What GPUs need for a dtype; apart from PyTorch, so that commands can read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Capability = tuple[int, int]
"""Compute capability of a GPU, as CUDA counts it."""
LEAST_CAPABILITY: Mapping[str, Capability] = MappingProxyType({"bf16": (8, 0), "fp8": (8, 9), "int8": (7, 5)})
"""By dtype; fp32 runs on every GPU. That of bf16 is that of attention over rows of any lengths."""
