"""What runs next: the interface of all policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from backends.errors import InvalidArgumentError
from backends.stack_key import StackKey

if TYPE_CHECKING:
    from backends.scheduling.order import Order
    from backends.scheduling.waiting_room import WaitingRoom


@dataclass(frozen=True)
class Capacity:
    """What one batch may hold at most. A single job is always let in, however long it is."""

    max_rows: int = 64
    max_tokens: int = 4096
    max_adapters: int = 64

    def __post_init__(self) -> None:
        if min(self.max_rows, self.max_tokens, self.max_adapters) < 1:
            raise InvalidArgumentError("a batch must have room for one row, one token and one adapter")


class Waiting(Protocol):
    """What a policy sees of a job."""

    @property
    def root(self) -> StackKey:
        """The stack that it runs on."""
        ...

    @property
    def hplm_key(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def deadline_us(self) -> int | None: ...
    @property
    def arrived_us(self) -> int: ...


class Policy(Protocol):
    """Pure: the same room, clock and capacity give the same batch, and the room stays as it is."""

    @property
    def order(self) -> Order:
        """In which it runs jobs, as nearly as one number of each can say."""
        ...

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        """Places in `waiting` of the next batch, all of one root; empty only if nothing waits."""
        ...
