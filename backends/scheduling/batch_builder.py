"""How policies put a batch together.

Usage:
    decision = Decision.between(waiting, now_us, capacity, ageing)
    batch, groups = decision.opened(stack_number)
    for indices in groups:
        batch.add_all_that_fit(indices)
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.scheduling.settings import AGED_PART, Ageing, Capacity
from backends.scheduling.waiting_room import Bools, Indices, WaitingRoom


class BatchBuilder:
    """Collects jobs of one stack, never more than the capacity; the first job fits however long it is."""

    def __init__(self, waiting: WaitingRoom[Any], capacity: Capacity) -> None:
        self.indices: list[int] = []
        self._num_tokens = waiting.num_tokens
        self._hplm_key = waiting.hplm_key
        self._capacity = capacity
        self._adapters: set[int] = set()
        self.rows_left = capacity.max_rows
        self.tokens_left = capacity.max_tokens

    def copy(self) -> BatchBuilder:
        other = copy(self)
        other.indices = self.indices.copy()
        other._adapters = self._adapters.copy()
        return other

    def add_until_full(self, order: Indices) -> int:
        """Add the first jobs, until the next does not fit; returns how many they are."""
        order = order[: self.rows_left]
        if len(self._adapters) + len(order) <= self._capacity.max_adapters:
            return self._add_while_tokens_last(order)
        count = 0
        for index, tokens, key in self._described(order):
            if not self._fits(tokens, key):
                break
            self._add(index, tokens, key)
            count += 1
        return count

    def _add_while_tokens_last(self, order: Indices) -> int:
        """Do so where no job lacks room for its row or its adapter."""
        tokens_after = self._num_tokens[order].cumsum()
        count = int(tokens_after.searchsorted(self.tokens_left, "right"))
        if not self.indices:
            count = max(count, min(1, len(order)))
        if count:
            added = order[:count]
            self.indices += added.tolist()
            self._adapters.update(self._hplm_key[added].tolist())
            self.rows_left -= count
            self.tokens_left -= int(tokens_after[count - 1])
        return count

    def add_all_that_fit(self, order: Indices) -> None:
        """Add each job that fits, one after the other.

        Most of a long queue cannot fit into the little that is left, so all of it is filtered at once each time as many
        jobs have been looked at as there were rows left.
        """
        while self.rows_left and len(order):
            window, order = order[: self.rows_left], order[self.rows_left :]
            for index, tokens, key in self._described(window):
                if self._fits(tokens, key):
                    self._add(index, tokens, key)
            order = order[self._may_fit(order)]

    def _described(self, order: Indices) -> Iterable[tuple[int, int, int]]:
        return zip(order.tolist(), self._num_tokens[order].tolist(), self._hplm_key[order].tolist(), strict=True)

    def _may_fit(self, order: Indices) -> Bools:
        fits: Bools = self._num_tokens[order] <= self.tokens_left
        if len(self._adapters) == self._capacity.max_adapters:
            fits &= np.isin(self._hplm_key[order], list(self._adapters))
        return fits

    def _fits(self, tokens: int, key: int) -> bool:
        if not self.indices:
            return True
        has_adapter = key in self._adapters or len(self._adapters) < self._capacity.max_adapters
        return self.rows_left > 0 and tokens <= self.tokens_left and has_adapter

    def _add(self, index: int, tokens: int, key: int) -> None:
        self.indices.append(index)
        self._adapters.add(key)
        self.rows_left -= 1
        self.tokens_left -= tokens


@dataclass(frozen=True)
class Decision:
    """The jobs that wait, how much fits, which of them have aged, and the candidates, whose stack may run now.

    Unless it is the turn of an aged job's stack, the candidates are the jobs within their tenants' shares, if any wait.
    """

    waiting: WaitingRoom[Any]
    capacity: Capacity
    ageing: Ageing
    aged: Indices
    candidates: Indices

    @classmethod
    def between(cls, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity, ageing: Ageing) -> Decision:
        aged = ageing.aged(waiting, now_us)
        if len(aged) and ageing.chooses_stack(waiting):
            candidates = np.flatnonzero(waiting.root == waiting.root[aged[0]])
        else:
            within = np.flatnonzero(waiting.within_share)
            candidates = within if len(within) else np.arange(len(waiting))
        return cls(waiting, capacity, ageing, aged, candidates)

    def opened(self, stack: int) -> tuple[BatchBuilder, list[Indices]]:
        """Begin a batch of that stack with the aged jobs' part in it; returns the stack's other jobs too.

        They are oldest first, in two groups: the jobs within their tenants' shares before the others; none is empty.
        """
        batch = BatchBuilder(self.waiting, self.capacity)
        indices = np.flatnonzero(self.waiting.root == stack)
        aged = self.aged[self.waiting.root[self.aged] == stack]
        if len(aged):
            part = BatchBuilder(self.waiting, self.capacity.part(AGED_PART))
            part.add_until_full(aged)
            batch.add_until_full(np.array(part.indices))
            indices = indices[~np.isin(indices, part.indices)]
        within = self.waiting.within_share[indices]
        return batch, [group for group in (indices[within], indices[~within]) if len(group)]
