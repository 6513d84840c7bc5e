"""How many rows Triton hands to a model in one call."""

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

    def may_leave_more(self, num_rows: int) -> bool:
        """Whether requests may wait behind a call of so many rows: then what fills the next one is there already.

        Half a call is taken for a full one, since a request of several rows may not have fitted in.
        """
        return 2 * num_rows >= self.max_rows
