"""The most rows that Triton hands to a model in one call, and the number of its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CallLimit:
    max_rows: int

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> CallLimit:
        """Read the arguments of `initialize`."""
        return cls(int(json.loads(args["model_config"])["max_batch_size"]))

    def was_call_full(self, num_rows: int) -> bool:
        """Whether more requests may wait behind a call of this many rows, and fill the next one already.

        From half of the limit on a call counts as full, since a request of several rows may not have fitted in.
        """
        return 2 * num_rows >= self.max_rows


def instances_of(args: Mapping[str, str]) -> int:
    """Return the number of processes of a model, from the arguments of `initialize`."""
    groups = json.loads(args["model_config"]).get("instance_group", [])
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups))
