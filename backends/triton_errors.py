"""Our errors as Triton's; only this module knows both sets of codes."""

from __future__ import annotations

from typing import Any

from backends.errors import HplmError


def triton_error(pb_utils: Any, error: HplmError) -> Any:
    """`pb_utils` is Triton's module, which exists only inside a model."""
    return pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, error.code.value))
