"""Deadline-aware scheduling, DAS: Algorithm 1 of the paper TCB."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backends.scheduling.ageing import Ageing
from backends.scheduling.decision import Decision
from backends.scheduling.open_batch import OpenBatch
from backends.scheduling.order import UtilityOrder
from backends.scheduling.policy import Capacity
from backends.scheduling.settings import DasSettings
from backends.scheduling.waiting_room import Places, WaitingRoom

_NEARLY = 1 - 1e-9
"""Of equals, the mean may come out a bit above them."""


class DeadlineAware:
    """A share of each batch goes to the shortest jobs, the rest to short ones that are due soon.

    Semantics:
        A job answered in time is worth 1 / its tokens.
        1. Of the s shortest jobs that fill the batch, the first `eta` * s are in: the utility-dominant ones.
        2. Then come those worth at least `q` times the mean of these, the earliest deadline first.
        3. Then the others, the shortest first. Whoever does not fit is passed over.

        The paper's batch has B rows of L tokens, and a text lies in one row. A ragged batch has no rows that texts
        could fail to fit into: it is one row of L = `Capacity.max_tokens`, in which at most `max_rows` texts lie end
        to end. So (11) holds with B = 1, and the steps are done once for a batch.

        Of several roots the one runs whose s shortest jobs are worth most. Aged jobs have their part first (`Ageing`).

        Theorem 5.1: over any stream of jobs with deadlines, in batches that take the same time, the jobs answered in
        time are worth at least eta * q / (eta * q + 1) of what anybody could reach who knows the future. In short: no
        batch of those that wait is worth more than the s shortest, and the utility-dominant ones alone are worth eta
        of that. So whatever a better schedule runs at some time and this one never does is worth at most 1 / eta of
        what this one runs at that time. That needs eta * s rounded up, and s to be as many jobs as can fit: so
        `max_adapters` must be no limit, which it is not where there are as many slots as rows.
    """

    def __init__(self, settings: DasSettings = DasSettings(), ageing: Ageing = Ageing()) -> None:
        self.order = UtilityOrder(settings.eta, settings.q)
        self._settings = settings
        self._ageing = ageing

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        if not len(waiting):
            return []
        decision = Decision.between(waiting, now_us, capacity, self._ageing)
        batch, others = decision.opened(_most_valuable_root(decision))
        for places in others:
            self._fill(batch, places, waiting)
        return batch.places

    def _fill(self, batch: OpenBatch, others: Places, waiting: WaitingRoom[Any]) -> int:
        """How many jobs are in as utility-dominant ones."""
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


def _most_valuable_root(decision: Decision) -> int:
    """Of equals, that of the oldest job."""
    lengths, root_of = decision.waiting.num_tokens[decision.candidates], decision.waiting.root[decision.candidates]
    first_seen, places = np.unique(root_of, return_index=True)
    roots: list[int] = first_seen[np.argsort(places)].tolist()

    def most_worth(root: int) -> float:
        shortest = np.sort(lengths[root_of == root])[: decision.capacity.max_rows]
        num_fitting = np.count_nonzero(shortest.cumsum() <= decision.capacity.max_tokens)
        return float((1 / shortest[: max(1, num_fitting)]).sum())

    return max(roots, key=most_worth)
