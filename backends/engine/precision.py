"""What the upper layers compute in: as exported, or the best that the device has of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from backends.errors import FileError
from backends.root.int8_file import Smoothing, read_smoothing
from backends.root.int8_linear import int8_instructions
from backends.root.packed import cpu_multiplies_bf16
from backends.root.store import RootFolder

LOGGER = logging.getLogger(__name__)
_STATES = MappingProxyType({"fp32": torch.float32, "bf16": torch.bfloat16})
DTYPES = (*_STATES, "int8")


@dataclass(frozen=True)
class Precision:
    """Precision of a stack on its device.

    Attributes:
        dtype: Its name, one of `DTYPES`.
        states: Data type of hidden states, adapters and attention.
        quantised: Whether the shared layers' products are in int8.
    """

    dtype: str
    states: torch.dtype
    quantised: bool


def precision_of(dtype: str, device: torch.device) -> Precision:
    """Return the precision for a setting; what the device lacks is replaced, and the log says so."""
    if dtype == "fp32":
        return Precision(dtype, torch.float32, quantised=False)
    rest = fast_float_dtype(device)
    missing = missing_for_int8(device) if dtype == "int8" else None
    if dtype == "int8" and missing is None:
        return Precision(dtype, _STATES[rest], quantised=True)
    if missing is not None:
        LOGGER.warning("dtype int8 is not available: %s; the upper layers compute in %s", missing, rest)
    elif dtype != rest:  # nothing that anyone has asked for: bf16 is the default
        LOGGER.info("the processor has no bf16 instructions; the upper layers compute in %s", rest)
    return Precision(rest, _STATES[rest], quantised=False)


def fast_float_dtype(device: torch.device) -> Literal["bf16", "fp32"]:
    """Return the faster of the two on a device."""
    return "bf16" if device.type != "cpu" or cpu_multiplies_bf16() else "fp32"


def smoothing_of(root: RootFolder) -> Smoothing:
    """Read a root's smoothing; without one that fits, layers are quantised without, and the log says why."""
    try:
        smoothing = read_smoothing(root.path, root.fingerprint, root.geometry)
        reason = f"no export has prepared the root in {root.path}"
    except FileError as error:
        smoothing, reason = None, str(error)
    if smoothing is None:
        LOGGER.warning("int8 without smoothing, so answers are less exact: %s; 'hplm export' makes it", reason)
    return smoothing or {}


def fastest_dtype(device: Literal["cpu", "gpu"]) -> tuple[Literal["bf16", "fp32", "int8"], str]:
    """Return the fastest dtype of this machine's processor, or of a GPU, and why it is that one."""
    if device == "gpu":
        return "bf16", "the fastest that stacks on a GPU have"
    cpu = torch.device("cpu")
    missing = missing_for_int8(cpu)
    if missing is None:
        return "int8", f"this processor has {int8_instructions()} instructions"
    return fast_float_dtype(cpu), missing


def missing_for_int8(device: torch.device) -> str | None:
    """Say what a device lacks for layers in int8."""
    if device.type != "cpu":
        return "on a GPU there are no int8 layers yet"
    return None if int8_instructions() else "the processor has neither VNNI nor AVX2 instructions"
