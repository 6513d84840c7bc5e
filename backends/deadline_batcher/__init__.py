"""Triton's custom batching plugin, in C++, and what maker and users agree on."""

from backends.deadline_batcher.agreement import (
    FILE_NAME,
    PLAN_VERSION,
    SOURCE,
    call_plan_parameters,
    plugin_parameters,
    version_of,
)

__all__ = ["FILE_NAME", "PLAN_VERSION", "SOURCE", "call_plan_parameters", "plugin_parameters", "version_of"]
