"""One row of one request inside the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from backends.clock import now_us
from backends.errors import HplmError
from backends.registry.entries import HplmEntry
from backends.scheduling.fair_share import tenant_of
from backends.wire import Float16Array, TextWords

Answer = dict[str, object]
Respond = Callable[[Answer | HplmError], None]
IsCancelled = Callable[[], bool]


def never() -> bool:
    """Of callers that wait whatever happens."""
    return False


@dataclass(frozen=True, eq=False)
class Job:
    """A row waiting for the upper half; `words` only where its task asks about them.

    `middle` is the first token of a pair's second half; `read_us` is when the server first read its request.

    Shape:
        hidden: `[L, H]`, the engine's own copy; no tensor, as each step with one lets other threads go first.
    """

    entry: HplmEntry
    hidden: Float16Array
    truncated: bool
    deadline_us: int | None
    respond: Respond
    words: TextWords | None = None
    middle: int | None = None
    read_us: int = field(default_factory=now_us)
    arrived_us: int = field(default_factory=now_us)
    is_cancelled: IsCancelled = never
    """Asks the caller's server; takes some 100 us."""

    @property
    def tenant(self) -> str:
        return tenant_of(self.entry.id)

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
