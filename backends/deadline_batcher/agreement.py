"""The agreement with the plugin: its file name, its parameters in a model's configuration, and its version."""

from __future__ import annotations

import re
from pathlib import Path

from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import Capacity

FILE_NAME = "batchstrategy.so"
"""File name that Triton looks for in a model's version folder."""
PLAN_VERSION = 11
"""Counts up whenever the plugin's parameters or the tickets change; the compiler is told as HPLM_PLAN_VERSION."""
SOURCE = Path(__file__).parent / "deadline_batcher.cc"

_MAX_CALL_BYTES = 16 << 20
"""The largest request that `hplm_lower` accepts has as many; a call of several requests has no more either."""
_OF_THIS_RELEASE = {"plan_version": str(PLAN_VERSION)}
_VERSION = re.compile(rb"hplm deadline batcher, plan (\d+), triton api [\d.]+;")


def plugin_parameters(capacity: Capacity, cost_model: CostModel | None) -> dict[str, str]:
    """Return the plugin's parameters; without a cost model a batch closes for a deadline only once it has passed."""
    cost = cost_model or CostModel(0.0, 0.0, 0.0, 0.0, 0.0)
    return {
        **_OF_THIS_RELEASE,
        "max_rows": str(capacity.max_rows),
        "max_tokens": str(capacity.max_tokens),
        "slots": str(capacity.max_adapters + 1),
        "cost_constant_us": str(float(cost.constant_us)),
        "cost_per_row_us": str(float(cost.per_row_us)),
        "cost_per_token_us": str(float(cost.per_token_us)),
        "cost_per_squared_length_us": str(float(cost.per_squared_length_us)),
        "cost_per_adapter_us": str(float(cost.per_adapter_us)),
    }


def call_plan_parameters() -> dict[str, str]:
    """Return the plugin's parameters for a model that queues what a call brings.

    A string that is shorter than its length says is cut and made no UTF-8; a request with more bytes than a call may
    have is in a batch of its own.
    """
    return {**_OF_THIS_RELEASE, "plan": "calls", "max_call_bytes": str(_MAX_CALL_BYTES)}


def version_of(plugin: Path) -> int | None:
    """The plan version that a plugin was built for; None where the file is no plugin of ours."""
    found = _VERSION.search(plugin.read_bytes())
    return int(found.group(1)) if found else None
