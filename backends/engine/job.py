"""One row of one request inside the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from backends.clock import now_us
from backends.engine.answer_level import Scored
from backends.engine.passed import Passed
from backends.errors import HplmError
from backends.registry.entries import HplmEntry
from backends.root.word_marks import WordMarks
from backends.scheduling.tenants import NO_TENANT, tenant_of
from backends.stack_key import FULL, StackKey
from backends.stage_wire import Mates
from backends.wire import AUTO, EARLY, Rows, TextWords

LOGGER = logging.getLogger(__name__)
Answer = bytes | Passed
"""A row's `RESULT`, a JSON object; or what the next stage gets of it, where that is another process."""
Respond = Callable[[Answer | HplmError], None]
IsWanted = Callable[[], bool]


def always() -> bool:
    """Tell that a row is wanted whatever happens."""
    return True


class Lease(Protocol):
    """A job's hold on a stack, such as the pin of an adapter slot, from staging to the job's end."""

    def release(self) -> None: ...


@dataclass(eq=False)
class Job:
    """A row from its arrival to its answer. Jobs are compared by identity.

    Attributes:
        hidden: `[L, H]`, the engine's own copy; a NumPy array, as each step with a tensor lets other threads go first.
        words: Only where the task asks about them.
        marks: Where its words begin; only of a row that may lose some.
        middle: The first token of a pair's second segment.
        exact: False where shorter fragments stand in for some that no table holds; the answer says so.
        computing_us: Processor time of `hplm_lower` for fragments of this row; its tenant is charged.
        is_wanted: Whether the request is still open; rows of an answered request are not computed.
        stack: Where the job runs next.
        lease: Held from staging until the job ends.
        fallback: The last `SoFar`; none where the hPLM sends no doubtful answers.
        level: What the request asks for, one of `LEVELS`.
        lacks_ladder: Whatever the registry says, its rows pass all layers: the ladder is damaged.
        is_canary: The server's own watchdog asks; no tenant is charged, and no metric counts the answer.
        depth: Share of the layers that the row is likely to pass; once its batch runs, that was chosen for it. Layers
            that it passes with fewer tokens count as far as it has kept them, here and in `passed`.
        kept: Share of its tokens that it is likely to keep if it goes on at its exit.
        least_depth: Share after which it can be answered at the earliest.
        most_depth: Share that it may be given.
        exit_depth: Share after which it leaves where it is sure; 1 where it never does.
        settles: It is answered as early as it can be, however sure it is: so it was asked for, or so the load wants it.
        passed: Share that it has passed; None before it has run.
        mates: Who was with it in the stage before this process.
        is_retried: Its last run gave NaN or infinity beside other rows; it is laid out isolated.
    """

    entry: HplmEntry
    hidden: Rows
    truncated: bool
    deadline_us: int | None
    respond: Respond
    words: TextWords | None = None
    middle: int | None = None
    exact: bool = True
    computing_us: int = 0
    level: str = AUTO
    lacks_ladder: bool = False
    is_canary: bool = False
    arrived_us: int = field(default_factory=now_us)
    is_wanted: IsWanted = always
    marks: WordMarks | None = None
    mates: Mates | None = None
    tenant: str = field(init=False)
    num_tokens: int = field(init=False)
    stack: StackKey = field(init=False)
    lease: Lease | None = field(init=False, default=None)
    fallback: Scored | None = field(init=False, default=None)
    is_retried: bool = field(init=False, default=False)
    depth: float = field(init=False)
    kept: float = field(init=False)
    least_depth: float = field(init=False)
    most_depth: float = field(init=False)
    exit_depth: float = field(init=False)
    settles: bool = field(init=False)
    passed: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        way = self.entry.way(self.level)
        self.stack, self.depth, self.kept, self.least_depth, self.most_depth, self.exit_depth = way
        self.settles = self.level == EARLY or self.stack.level != FULL
        if self.lacks_ladder and self.stack.level == FULL:
            self.depth = self.least_depth = self.exit_depth = self.kept = 1.0
        self.tenant = NO_TENANT if self.is_canary else tenant_of(self.entry.id)
        self.num_tokens = len(self.hidden)

    @property
    def root(self) -> StackKey:
        """The key that scheduling goes by."""
        return self.stack

    @property
    def hplm_key(self) -> int:
        return self.entry.key

    def is_late(self, now_us: int) -> bool:
        return self.deadline_us is not None and self.deadline_us <= now_us

    def settle(self) -> bool:
        """Take the answer of the exit, if there is one and the request allows it."""
        if self.settles or self.least_depth == 1.0 or not self.entry.may_settle:
            return False
        self.depth, self.settles = self.least_depth, True
        return True

    def unsettle(self, depth: float) -> None:
        """Go on as before, when the row was likely to pass this share of the layers."""
        self.depth, self.settles = depth, False

    def go_all_the_way(self) -> None:
        """Count on all layers, as early answers are not trusted now; what cannot settle is not answered before."""
        self.depth = 1.0
        if not self.entry.may_settle:
            self.least_depth = 1.0

    def retry(self) -> None:
        """Run again, isolated; where it cannot settle, no less deep than before: its tenant has paid for that."""
        self.is_retried = True
        if self.stack.level != FULL or not self.entry.may_settle:
            self.least_depth = self.depth

    def end(self, answer: Answer | HplmError) -> None:
        """Release what the job holds, then answer it; an unreachable caller costs the others nothing."""
        self.release_lease()
        try:
            self.respond(answer)
        except Exception:
            LOGGER.exception("an answer for %s could not be sent", self.entry.id)

    def release_lease(self) -> None:
        lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            lease.release()
        except Exception:
            LOGGER.exception("the adapters of %s could not be released", self.entry.id)
