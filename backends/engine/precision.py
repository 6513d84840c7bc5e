"""What the upper layers compute in: as exported, or the best that the device has of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import torch

from backends.engine.gpu_capability import LEAST_CAPABILITY
from backends.errors import FileError, FormatVersionError
from backends.root.int8_file import Smoothing, read_smoothing
from backends.root.int8_instructions import int8_instructions
from backends.root.packed import cpu_multiplies_bf16
from backends.root.store import RootFolder

LOGGER = logging.getLogger(__name__)
Products = Literal["fp8", "int8"]
_STATES: Mapping[str, torch.dtype] = MappingProxyType({"fp32": torch.float32, "bf16": torch.bfloat16})
_QUANTISED: tuple[Products, ...] = get_args(Products)
DTYPES = (*_STATES, *_QUANTISED)


@dataclass(frozen=True)
class Precision:
    """Precision of a stack on its device.

    Attributes:
        states: Data type of hidden states, adapters and attention.
        products: What the shared layers' products are quantised to, if they are.
    """

    states: torch.dtype
    products: Products | None = None

    @property
    def dtype(self) -> str:
        """Its name, one of `DTYPES`."""
        return self.products or next(name for name, dtype in _STATES.items() if dtype == self.states)


def precision_of(dtype: str, device: torch.device) -> Precision:
    """Return the precision for a setting; what the device lacks is replaced, and the log says so."""
    if dtype == "fp32":
        return Precision(torch.float32)
    rest = fast_float_dtype(device)
    for products in _QUANTISED:
        if dtype == products:
            missing = missing_for(products, device)
            if missing is None:
                return Precision(_STATES[rest], products)
            LOGGER.warning("dtype %s is not available: %s; the upper layers compute in %s", dtype, missing, rest)
            return Precision(_STATES[rest])
    if dtype != rest:  # nothing that anyone has asked for: bf16 is the default
        lacks = "the processor has no bf16 instructions" if device.type == "cpu" else _lacks("bf16", device)
        LOGGER.info("%s; the upper layers compute in %s", lacks, rest)
    return Precision(_STATES[rest])


def fast_float_dtype(device: torch.device) -> Literal["bf16", "fp32"]:
    """Return the faster of the two on a device."""
    has_bf16 = cpu_multiplies_bf16() if device.type == "cpu" else _lacks("bf16", device) is None
    return "bf16" if has_bf16 else "fp32"


def has_amx() -> bool:
    """Whether the processor multiplies bf16 in tiles."""
    return torch.cpu._is_amx_tile_supported() and cpu_multiplies_bf16()


def smoothing_of(root: RootFolder) -> Smoothing:
    """Read a root's smoothing; without one that fits, layers are quantised without, and the log says why."""
    remedy = "; 'hplm export --dtype int8', with your other options, and a restart mend that"
    try:
        smoothing = read_smoothing(root.path, root.fingerprint, root.geometry)
        reason = f"no export has prepared the root in {root.path}{remedy}"
    except FormatVersionError as error:
        smoothing, reason = None, str(error)
    except FileError as error:
        smoothing, reason = None, f"{error}{remedy}"
    if smoothing is None:
        LOGGER.warning("int8 without smoothing, so answers are less exact: %s", reason)
    return smoothing or {}


def fastest_dtype(device: Literal["cpu", "gpu"]) -> tuple[Literal["bf16", "fp32", "int8"], str]:
    """Return the fastest dtype of this machine's processor, or of a GPU, and why it is that one."""
    if device == "gpu":
        return "bf16", "fp8 and int8 are slower on GPUs, as each product quantises its inputs in steps of their own"
    cpu = torch.device("cpu")
    if has_amx():
        return "bf16", "AMX multiplies bf16 so fast that int8, which has to quantise, is no faster"
    missing = missing_for("int8", cpu)
    if missing is None:
        return "int8", f"this processor has {int8_instructions()} instructions"
    return fast_float_dtype(cpu), missing


def missing_for(products: Products, device: torch.device) -> str | None:
    """Say what a device lacks for quantised layers."""
    if device.type == "cpu":
        if products == "fp8":
            return "fp8 is for GPUs"
        return None if int8_instructions() else "the processor has neither VNNI nor AVX2 instructions"
    return _lacks(products, device)


def _lacks(dtype: str, gpu: torch.device) -> str | None:
    """Say what a GPU lacks for a dtype."""
    least, found = LEAST_CAPABILITY[dtype], torch.cuda.get_device_capability(gpu)
    if found >= least:
        return None
    return f"the GPU has capability {found[0]}.{found[1]}, and {dtype} needs {least[0]}.{least[1]}"
