"""Deadline-aware scheduling, DAS and slotted DAS: Algorithms 1 and 2 of the paper TCB."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backends.scheduling.batch_builder import BatchBuilder, Decision
from backends.scheduling.order import LengthOrder, SlottedOrder, UtilityOrder
from backends.scheduling.settings import Ageing, Capacity, DasSettings
from backends.scheduling.waiting_room import Indices, WaitingRoom

_NEARLY = 1 - 1e-9
"""The mean of equals may come out a bit above them."""


class DeadlineAware:
    """A share of each batch goes to the shortest jobs, the rest to short ones that are due soon.

    Semantics:
        A job answered in time is worth 1 / its tokens.
        1. Of the s shortest jobs that fill the batch, the first `eta` * s are in: the utility-dominant ones.
        2. Then come those worth at least `q` times the mean of these, the earliest deadline first.
        3. Then the others, the shortest first. A job that does not fit is passed over.

        The paper's batch has B rows of L tokens, and a text lies in one row. A ragged batch has no rows that texts
        could fail to fit into: it is one row of L = `Capacity.max_tokens`, in which at most `max_rows` texts lie end
        to end. So (11) holds with B = 1, and the steps are done once for a batch.

        Of several stacks the one runs whose s shortest jobs are worth most. Aged jobs have their part first (`Ageing`).

        Theorem 5.1: over any stream of jobs with deadlines, in batches that take the same time, the jobs answered in
        time are worth at least eta * q / (eta * q + 1) of the best schedule that knows the future. In short: no
        batch of those that wait is worth more than the s shortest, and the utility-dominant ones alone are worth eta
        of that. So whatever a better schedule runs at some time and this one never does is worth at most 1 / eta of
        what this one runs at that time. That needs eta * s rounded up, and s to be as many jobs as can fit: so
        `max_adapters` must be no limit, which it is not where there are as many slots as rows.
    """

    def __init__(self, settings: DasSettings = DasSettings(), ageing: Ageing = Ageing()) -> None:
        self.order: LengthOrder = UtilityOrder(settings.eta, settings.q)
        self._settings = settings
        self._ageing = ageing

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        if not len(waiting):
            return []
        decision = Decision.between(waiting, now_us, capacity, self._ageing)
        batch, groups = decision.opened(_most_valuable_stack(decision))
        for indices in groups:
            self._fill(batch, indices, waiting)
        return batch.indices

    def _fill(self, batch: BatchBuilder, others: Indices, waiting: WaitingRoom[Any]) -> int:
        """Fill the batch; returns how many jobs are in as utility-dominant ones."""
        lengths = waiting.num_tokens
        by_utility = others[np.argsort(lengths[others], kind="stable")]
        saturating = batch.copy().add_until_full(by_utility)
        dominant = by_utility[: math.ceil(self._settings.eta * saturating)]
        rest = by_utility[len(dominant) :]
        batch.add_until_full(dominant)
        if len(dominant):
            least = _NEARLY * self._settings.q * (1 / lengths[dominant]).mean()
            num_worthy = np.count_nonzero(1 / lengths[rest] >= least)
            worthy, rest = rest[:num_worthy], rest[num_worthy:]
            batch.add_all_that_fit(worthy[np.argsort(waiting.deadline_us[worthy], kind="stable")])
        batch.add_all_that_fit(rest)
        return len(dominant)


class SlottedDeadlineAware(DeadlineAware):
    """What DAS chooses, as far as it lies in slots of equal size.

    Semantics:
        A slot is as long as the longest utility-dominant job, so none of these is too long for it. The batch's tokens
        are cut into as many slots as they hold, and the chosen jobs are put, in the order in which they were chosen,
        into the first slot that still has room. A job that finds none waits on. Where DAS chooses all jobs that wait,
        all run: a long one would wait for no other's sake, and might wait until its deadline.

        That suits the layout `slotted`, whose slots are as long as the longest text of a batch: no text that is much
        longer than the others makes all of them long. The ragged layout gains nothing by it. A batch holds less than
        one of DAS, and Theorem 5.1 is about DAS only.
    """

    def __init__(self, settings: DasSettings = DasSettings(), ageing: Ageing = Ageing()) -> None:
        super().__init__(settings, ageing)
        self.order = SlottedOrder(settings.eta)

    def _fill(self, batch: BatchBuilder, others: Indices, waiting: WaitingRoom[Any]) -> int:
        candidates = batch.copy()
        num_dominant = super()._fill(candidates, others, waiting)
        if not num_dominant:
            return 0
        chosen = candidates.indices[len(batch.indices) :]
        if len(chosen) == len(others):
            batch.add_until_full(np.array(chosen))
            return num_dominant
        lengths = waiting.num_tokens[chosen]
        slots = _Slots(batch.tokens_left, int(lengths[:num_dominant].max()))
        batch.add_until_full(
            np.array([index for index, tokens in zip(chosen, lengths.tolist(), strict=True) if slots.take(tokens)])
        )
        return num_dominant


class _Slots:
    """First fit; at least one slot, because a single job always fits."""

    def __init__(self, tokens: int, slot_tokens: int) -> None:
        self._size = slot_tokens
        self._unused = max(1, tokens // slot_tokens)
        self._free: list[int] = []
        """Tokens that each slot in use has left."""

    def take(self, tokens: int) -> bool:
        if tokens > self._size:
            return False
        for number, free in enumerate(self._free):
            if tokens <= free:
                self._free[number] -= tokens
                return True
        if not self._unused:
            return False
        self._unused -= 1
        self._free.append(self._size - tokens)
        return True


def _most_valuable_stack(decision: Decision) -> int:
    """Among equals, the stack of the oldest job."""
    waiting, candidates = decision.waiting, decision.candidates
    lengths, stack_of = waiting.num_tokens[candidates], waiting.root[candidates]
    stacks, first_seen = np.unique(stack_of, return_index=True)
    oldest_first: list[int] = stacks[np.argsort(first_seen)].tolist()

    def most_worth(stack: int) -> float:
        shortest = np.sort(lengths[stack_of == stack])[: decision.capacity.max_rows]
        num_fitting = np.count_nonzero(shortest.cumsum() <= decision.capacity.max_tokens)
        return float((1 / shortest[: max(1, num_fitting)]).sum())

    return max(oldest_first, key=most_worth)
