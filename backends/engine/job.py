"""One row of one request inside the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from backends.errors import HplmError
from backends.registry.entries import HplmEntry

Answer = dict[str, object]
Respond = Callable[[Answer | HplmError], None]


@dataclass(frozen=True, eq=False)
class Job:
    """A row waiting for the upper half.

    Shape:
        hidden: `[L, H]`, the engine's own copy.
    """

    entry: HplmEntry
    hidden: Tensor
    truncated: bool
    deadline_us: int | None
    respond: Respond

    @property
    def num_tokens(self) -> int:
        return self.hidden.shape[0]

    @property
    def root(self) -> str:
        """The stack that this job runs on."""
        return self.entry.domain.root

    @property
    def hplm_key(self) -> int:
        return self.entry.key

    def is_late(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us
