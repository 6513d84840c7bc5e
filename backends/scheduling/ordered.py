"""Policies that give each job a rank: the batch is of the first one's root, in the order of the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from backends.scheduling.ageing import Ageing
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.decision import Decision
from backends.scheduling.order import DeadlineOrder, LengthOrder, Order
from backends.scheduling.policy import Capacity
from backends.scheduling.waiting_room import Float64, WaitingRoom
from backends.stack_key import StackKey


class OrderedPolicy(ABC):
    """Whoever does not fit is passed over. Of equals the one that waits longer goes first."""

    order: Order

    def __init__(self, ageing: Ageing = Ageing()) -> None:
        self._ageing = ageing

    @abstractmethod
    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        """A number for each job; the lowest goes first."""

    def select(self, waiting: WaitingRoom[Any], now_us: int, capacity: Capacity) -> list[int]:
        if not len(waiting):
            return []
        decision = Decision.between(waiting, now_us, capacity, self._ageing)
        ranks = self.ranks(waiting, now_us)
        first = decision.candidates[ranks[decision.candidates].argmin()]
        batch, others = decision.opened(int(waiting.root[first]))
        for places in others:
            batch.add_all_that_fit(places[np.argsort(ranks[places], kind="stable")])
        return batch.places


class ShortestJobFirst(OrderedPolicy):
    order = LengthOrder()

    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        return waiting.num_tokens.astype(np.float64)


class EarliestDeadlineFirst(OrderedPolicy):
    """Jobs without a deadline come after all others."""

    order = DeadlineOrder()

    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        return waiting.deadline_us


class LeastSlack(OrderedPolicy):
    """Slack is the time that a job can still wait: until its deadline, less what it would take alone.

    Alone, because its batch is not known yet. A job that could not make it even so is not given up, because the
    prediction may be wrong, but it takes no room from one that can: it comes after them, like a job without a deadline.

    Args:
        cost_model: That of a root, as it is now; asked at each decision, because it is corrected while it is used.
    """

    order = DeadlineOrder()

    def __init__(self, cost_model: Callable[[StackKey], CostModel], ageing: Ageing = Ageing()) -> None:
        super().__init__(ageing)
        self._cost_model = cost_model

    def ranks(self, waiting: WaitingRoom[Any], now_us: int) -> Float64:
        slack_us = waiting.deadline_us - now_us - self._alone_us(waiting)
        return np.where(slack_us >= 0, slack_us, np.inf)

    def _alone_us(self, waiting: WaitingRoom[Any]) -> Float64:
        alone_us = np.empty(len(waiting))
        for root in np.unique(waiting.root).tolist():
            is_of_root = waiting.root == root
            model = self._cost_model(waiting.root_name(root))
            lengths = waiting.num_tokens[is_of_root]
            empty_us = model.predict_us(BatchShape(rows=1, tokens=0, squared_lengths=0, adapters=1))
            alone_us[is_of_root] = empty_us + (model.per_token_us + model.per_squared_length_us * lengths) * lengths
        return alone_us
