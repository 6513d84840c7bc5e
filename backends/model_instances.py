"""The number of a model's processes."""

from __future__ import annotations

import json
from collections.abc import Mapping


def instances_of(args: Mapping[str, str]) -> int:
    """Return the number of processes of a model, from the arguments of `initialize`."""
    groups = json.loads(args["model_config"]).get("instance_group", [])
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups))
